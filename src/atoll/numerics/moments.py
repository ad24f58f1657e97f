"""The optimizer's state by fragment: what a learner that comes back needs besides the weights.

Any torch optimizer will do. Of what it keeps for a parameter, tensors of the parameter's shape (`exp_avg`,
`momentum_buffer`, ...) are cut into the manifest's units like the parameter itself, and single values
(`step`) travel with every unit. State of another shape (factored moments, histories) cannot be cut: the
parameter is then marked as not savable, and starts fresh. Which keys there are, and of which type, is read
from the state at each copy: torch makes it at the first step, not before.

    training thread   `copy`: one fragment into kept host memory, and nothing else
    one worker        `to_bytes`, `to_wire`; then `release`, so that the memory is used again
                      `from_bytes`, `prepare`: everything slow about taking state back
    training thread   `put`, `reset`: exchange references

Another thread may copy too, while the training thread computes: `copy_between` notices, by two hooks, an
`optimizer.step` that ran meanwhile, and then gives nothing. With an optimizer that has no hooks it cannot
notice; such a copy may mix two neighbouring steps.

The copy from a GPU is a plain one: the training thread waits for it, once per fragment. The ferry's
buffers hold f32 fragments and stay; twice that much, only for saving now and then, would not pay.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from atoll.errors import ModelError
from atoll.numerics.manifest import Manifest, Unit
from atoll.numerics.moment_bytes import (
    CODES,
    Copied,
    Piece,
    Scalar,
    UnitState,
    dtype_name,
    pack,
    unpack,
)
from atoll.numerics.partition import trainable

__all__ = ["Copied", "Installed", "Moments", "Prepared"]

NUM_ROOMS = 2
"""Kept buffers: one for the disk, one for a peer."""
HOW_IT_RUNS = ("foreach", "fused", "capturable", "differentiable", "maximize")
"""Options that change no key of the state: lives and peers may differ in them."""

State = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Installed:
    """Which parameters have their optimizer state again, by name, and which were left as they were."""

    restored: tuple[str, ...]
    fresh: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """Optimizer state in its final form, to be put into place at a boundary."""

    states: Mapping[nn.Parameter, Mapping[str, Any]]
    installed: Installed


class Moments:
    """The state of one optimizer, cut by the manifest of its model."""

    def __init__(self, optimizer: torch.optim.Optimizer, model: nn.Module, manifest: Manifest) -> None:
        self.optimizer = optimizer
        self.manifest = manifest
        self.kind = type(optimizer).__name__
        self._manifest_digest = manifest.digest
        self._parameters = {storage.name: parameter for storage, parameter in trainable(model)}
        self._rooms: deque[Tensor] = deque(maxlen=NUM_ROOMS)
        self._num_begun = 0
        self._is_stepping = False
        self._stepper = 0
        self._hooks: tuple[RemovableHandle, ...] = ()
        with suppress(AttributeError):  # wrappers that never called Optimizer.__init__ have no hooks
            self._hooks = (
                optimizer.register_step_pre_hook(self._begun),
                optimizer.register_step_post_hook(self._done),
            )

    def detach(self) -> None:
        """Leave the optimizer alone from now on."""
        for hook in self._hooks:
            hook.remove()

    @property
    def has_state(self) -> bool:
        """Whether the optimizer holds anything yet."""
        return any(self.optimizer.state.get(parameter) for parameter in self._parameters.values())

    @property
    def is_broken_off(self) -> bool:
        """Whether this very thread began a step of the optimizer and did not end it: it raised, or a signal
        came. What it left half done is not to be copied."""
        return self._is_stepping and self._stepper == threading.get_ident()

    # Copying

    def copy(self, fragment: int) -> Copied:
        """One fragment's state as it is. Training thread, at a boundary. Give it back with `release`."""
        options = self._options()
        units = [self._look(unit, options) for unit in self.manifest.fragments[fragment].units]
        room = self._room(sum(p.values.nbytes for unit in units for p in unit.pieces.values()))
        kept = _into(room, units)
        return Copied(fragment, self.kind, self._manifest_digest, kept, room=room)

    def copy_between(self, fragment: int) -> Copied | None:
        """The same from another thread; None if the optimizer was at work meanwhile: try again."""
        num_begun = self._num_begun
        if self._is_stepping:
            return None
        try:
            copied = self.copy(fragment)
        except (RuntimeError, KeyError):  # the state grew while it was read: the first step, for example
            return None
        if self._is_stepping or self._num_begun != num_begun:
            self.release(copied)
            return None
        return copied

    def release(self, copied: Copied) -> None:
        """Let the memory of a copy be used again. Any thread, once."""
        if copied.room is not None:
            self._rooms.append(copied.room)

    def memory_bytes(self) -> int:
        """What is kept beside the optimizer while nothing is being saved."""
        return sum(room.nbytes for room in list(self._rooms))

    # Bytes

    def to_bytes(self, copied: Copied, notes: Mapping[str, Any] | None = None) -> list[bytes | memoryview]:
        """The parts of a file for the own disk: every value exact, in its own type. Worker."""
        return pack(copied, notes or {})

    def to_wire(self, copied: Copied) -> bytes:
        """The same for a peer: values in bf16, counters exact. Worker."""
        return b"".join(pack(copied, {}, narrow=True))

    def from_bytes(self, fragment: int, content: bytearray | memoryview) -> Copied:
        """What either of these made, checked against this optimizer; a ModelError says what does not fit.

        The values lie in `content`, which must not be changed while the copy is used. Worker.
        """
        copied = unpack(content)
        wrong = self._difference(fragment, copied)
        if wrong:
            raise ModelError(
                f"This optimizer state does not fit: {wrong}.",
                "Steps taken with it would be wrong, or fail.",
                "Nothing is to be done if model or optimizer were changed on purpose: it starts fresh.",
            )
        return copied

    # Taking back

    def prepare(self, copies: Iterable[Copied], names: Iterable[str] | None = None) -> Prepared:
        """Put whole parameters together from their units; changes nothing yet. Worker.

        A parameter of which a unit is missing is left out, and so are those that `names` does not name.
        """
        found: dict[str, list[UnitState]] = {name: [] for name in self._parameters}
        for copied in copies:
            for unit in copied.units:
                if unit.savable:
                    found[unit.storage].append(unit)
        states, left = {}, []
        wanted = list(self._parameters if names is None else names)
        for name in wanted:
            parameter, units = self._parameters[name], sorted(found[name], key=lambda unit: unit.start)
            is_whole = sum(unit.stop - unit.start for unit in units) == parameter.numel()
            if is_whole and len({_keys(unit) for unit in units}) == 1:
                states[parameter] = self._assemble(parameter, units)
            else:
                left.append(name)
        restored = tuple(name for name in wanted if name not in left)
        return Prepared(states, Installed(restored, tuple(left)))

    def put(self, prepared: Prepared) -> Installed:
        """Let the optimizer go on with this state. Before training, or at a boundary."""
        for parameter, state in prepared.states.items():
            self.optimizer.state.pop(parameter, None)
            if state:
                self.optimizer.state[parameter] = dict(state)
        return prepared.installed

    def install(self, copies: Iterable[Copied]) -> Installed:
        """Prepare and put in one call, for callers without a worker."""
        return self.put(self.prepare(copies))

    def reset(self) -> None:
        """Forget all state: the next step makes it anew. At a boundary."""
        for parameter in self._parameters.values():
            self.optimizer.state.pop(parameter, None)

    def _assemble(self, parameter: nn.Parameter, units: list[UnitState]) -> dict[str, Any]:
        """Units of one parameter may be a few steps apart; counters are those of the newest."""
        group = next((g for g in self.optimizer.param_groups if any(p is parameter for p in g["params"])), {})
        state: dict[str, Any] = {}
        newest = max(units, key=lambda unit: _number(unit.scalars.get("step")))
        for key, scalar in newest.scalars.items():
            state[key] = _scalar_for(parameter, group, key, scalar)
        for key, piece in newest.pieces.items():
            dtype = getattr(torch, piece.dtype)
            flat = torch.empty(parameter.numel(), dtype=dtype, device="cpu")
            for unit in units:
                flat[unit.start : unit.stop].copy_(unit.pieces[key].values)
            value = torch.empty_like(parameter, dtype=dtype, requires_grad=False)
            state[key] = value.copy_(flat.view(parameter.shape))
        return state

    # Looking

    def _look(self, unit: Unit, options: Mapping[nn.Parameter, str]) -> UnitState:
        """The unit's state where it lies: pieces are views of the optimizer's own tensors."""
        parameter = self._parameters[unit.storage]
        setting = options.get(parameter, "")
        state: State = self.optimizer.state.get(parameter) or {}
        pieces: dict[str, Piece] = {}
        scalars: dict[str, Scalar] = {}
        for key, value in state.items():
            if _is_single(value):
                scalars[key] = _scalar(value)
            elif _is_like(value, parameter):
                flat = value.detach().reshape(-1)[unit.start : unit.stop]
                pieces[key] = Piece(flat, dtype_name(value.dtype))
            else:
                return UnitState(unit.storage, unit.start, unit.stop, setting, savable=False)
        return UnitState(unit.storage, unit.start, unit.stop, setting, True, pieces, scalars)

    def _options(self) -> dict[nn.Parameter, str]:
        """For every parameter, the settings of its group on which the keys of its state depend."""
        options = {}
        for group in self.optimizer.param_groups:
            flags = {k: v for k, v in group.items() if isinstance(v, bool) and k not in HOW_IT_RUNS}
            if "momentum" in group:
                flags["momentum"] = bool(group["momentum"])
            text = ", ".join(f"{key} {'on' if flags[key] else 'off'}" for key in sorted(flags))
            options.update(dict.fromkeys(group["params"], text))
        return options

    def _difference(self, fragment: int, copied: Copied) -> str:
        if copied.optimizer != self.kind:
            return f"it is of {copied.optimizer}, and this is {self.kind}"
        if copied.fragment != fragment:
            return f"it is of fragment {copied.fragment}, not {fragment}"
        wanted = self.manifest.fragments[fragment].units
        cut = [(unit.storage, unit.start, unit.stop) for unit in copied.units]
        if copied.manifest != self._manifest_digest or cut != [(u.storage, u.start, u.stop) for u in wanted]:
            return "it is of another model, or of one that was cut in another way"
        options = self._options()
        for unit in copied.units:
            here = options.get(self._parameters[unit.storage], "")
            if unit.options != here:
                return f"{unit.storage} was trained with {unit.options or 'no options'}, now {here or 'none'}"
        return ""

    def _room(self, num_bytes: int) -> Tensor:
        """Kept memory, as large as the largest fragment so far."""
        try:
            room = self._rooms.pop()
        except IndexError:
            room = torch.empty(0, dtype=torch.uint8, device="cpu")
        return room if room.numel() >= num_bytes else torch.empty(num_bytes, dtype=torch.uint8, device="cpu")

    def _begun(self, *_: Any) -> None:
        self._num_begun += 1
        self._stepper = threading.get_ident()
        self._is_stepping = True

    def _done(self, *_: Any) -> None:
        self._is_stepping = False


def _into(room: Tensor, units: list[UnitState]) -> tuple[UnitState, ...]:
    """Copy all pieces into one block of memory, wide types first so that each lies on its boundary."""
    places: dict[tuple[int, str], Tensor] = {}
    pieces = [(number, key, piece) for number, unit in enumerate(units) for key, piece in unit.pieces.items()]
    at = 0
    for number, key, piece in sorted(pieces, key=lambda entry: -entry[2].values.itemsize):
        values = piece.values
        place = room[at : at + values.nbytes].view(values.dtype)
        places[number, key] = place.copy_(values)
        at += values.nbytes
    return tuple(
        UnitState(
            unit.storage,
            unit.start,
            unit.stop,
            unit.options,
            unit.savable,
            {key: Piece(places[number, key], piece.dtype) for key, piece in unit.pieces.items()},
            unit.scalars,
        )
        for number, unit in enumerate(units)
    )


def _is_single(value: Any) -> bool:
    """A plain number, nothing, or a tensor without dimensions: also the state of a parameter without any."""
    if isinstance(value, Tensor):
        return value.dim() == 0 and dtype_name(value.dtype) in CODES
    return value is None or isinstance(value, (bool, int, float))


def _is_like(value: Any, parameter: nn.Parameter) -> bool:
    is_dense = isinstance(value, Tensor) and value.layout == torch.strided
    return is_dense and value.shape == parameter.shape and dtype_name(value.dtype) in CODES


def _scalar(value: Any) -> Scalar:
    if isinstance(value, Tensor):
        return Scalar(value.item(), dtype_name(value.dtype), value.device.type == "cpu")
    return Scalar(value)


def _scalar_for(parameter: nn.Parameter, group: Mapping[str, Any], key: str, scalar: Scalar) -> Any:
    """A single value as this optimizer wants it: torch keeps `step` on the host unless told otherwise."""
    if not scalar.dtype:
        return scalar.value
    on_device = bool(group.get("capturable") or group.get("fused"))
    on_host = not on_device if key == "step" else scalar.on_host
    where = torch.device("cpu") if on_host else parameter.device
    return torch.tensor(scalar.value, dtype=getattr(torch, scalar.dtype), device=where)


def _keys(unit: UnitState) -> tuple[str, ...]:
    return (*sorted(unit.pieces), *sorted(unit.scalars))


def _number(scalar: Scalar | None) -> float:
    return float(scalar.value or 0) if scalar is not None else 0.0
