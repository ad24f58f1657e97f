"""The learner's replica: what it holds of every fragment beside the model it trains.

    base      the bit pattern of a version, in f32, as the syncer serves it
    snapshot  the local values at the moment an offer was asked for; the offer is delta = base - snapshot
    staged    the next base, computed off the training thread, waiting for a step boundary
    residual  what the codec left unsaid of merged offers

The training thread calls `snapshot` and `adopt`, which copy one fragment and nothing more. The slow
part, `encode` and `stage`, belongs to another thread. They never touch the model, and `adopt` replaces
buffers instead of overwriting them, so an `encode` under way keeps the base and snapshot it began with.

Adoption of a published fragment, in the words of `Adopt`:

    overwrite  local = published                            the paper
    blend      local = a * local + (1 - a) * published
    rebase     local = published + (local - snapshot)       if the offer was merged
               local = published + (local - base)           if not

In `rebase` an offer may still be open while another round's publish is adopted. Its snapshot moves
along, snapshot = published + (snapshot - base), so that a later verdict finds the progress made since.

Parameters may be bf16 or f16: base and arithmetic stay f32, the model gets rounded values. A delta is
then counted from the base *as the model holds it*, rounded; otherwise every offer would drag the global
value towards the rounding of one learner. Differs: the paper does not speak of this.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from atoll.core.params import ADOPT_MODES, Adopt
from atoll.errors import ConfigError, ModelError, ProtocolError
from atoll.numerics.codec import Codec
from atoll.numerics.feedback import Encoder
from atoll.numerics.manifest import Manifest, Unit
from atoll.numerics.outer import apply_update
from atoll.numerics.partition import trainable
from atoll.numerics.scratch import borrow

__all__ = ["Replica"]


@dataclass(slots=True)
class _Pending:
    """An open offer: delta = base - snapshot."""

    base: Tensor
    snapshot: Tensor


class Replica:
    """Base, open offer, staged publish and residual of every fragment of one learner's model."""

    def __init__(
        self,
        model: nn.Module,
        manifest: Manifest,
        offer_codec: Codec,
        publish_codec: Codec,
        adopt: Adopt = "overwrite",
        blend_alpha: float = 0.5,
        feedback: bool | None = None,
    ) -> None:
        """`feedback` None leaves error feedback to the codec: on for eight bits and fewer."""
        _check_settings(adopt, blend_alpha)
        self.manifest = manifest
        self.publish_codec = publish_codec
        self._adopt = adopt
        self._alpha = blend_alpha
        self._parameters = _parameters_of(model, manifest)
        keep_errors = offer_codec.wants_feedback if feedback is None else feedback
        self._encoders = [Encoder(offer_codec, f.numel, keep_errors) for f in manifest.fragments]
        count = len(manifest.fragments)
        self._bases: list[Tensor | None] = [None] * count
        self._pending: list[_Pending | None] = [None] * count
        self._staged: list[Tensor | None] = [None] * count
        self._spare: list[Tensor | None] = [None] * count
        self._swap = threading.Lock()  # held to exchange references, never to compute

    # ------------------------------------------------------------------ whole fragments

    def gather(self, fragment: int, out: Tensor | None = None) -> Tensor:
        """Local values of a fragment, flat f32, in `out` if given."""
        numel = self.manifest.fragments[fragment].numel
        values = torch.empty(numel, dtype=torch.float32, device="cpu") if out is None else out
        for low, high, unit in self._spans(fragment):
            flat = self._parameters[unit.storage].detach().reshape(-1)
            values[low:high].copy_(flat[unit.start : unit.stop])
        return values

    def load(self, fragment: int, values: Tensor) -> None:
        """Take a full fragment as base and as local values; an open offer and a staged publish go."""
        self._bases[fragment] = self._checked(fragment, values).clone()
        self._staged[fragment] = None
        self.resolve(fragment, merged=False)
        self._scatter(fragment, values)

    def set_base_from_local(self, fragment: int) -> Tensor:
        """Make the local values the base (the first learner seeds version 0), and return it."""
        self._bases[fragment] = base = self.gather(fragment)
        return base

    def base(self, fragment: int) -> Tensor:
        """The version this learner holds, flat f32. Not to be changed."""
        base = self._bases[fragment]
        if base is None:
            raise ProtocolError(
                f"Fragment {fragment} has no base yet.",
                "There is no version to count progress from.",
                "Call load or set_base_from_local first.",
            )
        return base

    # ------------------------------------------------------------------ offers

    def has_pending(self, fragment: int) -> bool:
        """Whether an offer on this fragment is unresolved."""
        return self._pending[fragment] is not None

    def snapshot(self, fragment: int) -> None:
        """Copy the local values for an offer. Training thread, at a step boundary."""
        if self._pending[fragment] is not None:
            raise ProtocolError(
                f"Fragment {fragment} already has an open offer.",
                "A second one could count the same progress twice.",
                "Abstain until the first is resolved.",
            )
        spare, self._spare[fragment] = self._spare[fragment], None
        self._pending[fragment] = _Pending(self.base(fragment), self.gather(fragment, spare))

    def encode(self, fragment: int, out: Tensor | None = None) -> Tensor:
        """The body of the open offer: base - snapshot, plus the residual. Off the training thread."""
        pending = self._pending[fragment]
        if pending is None:
            raise ProtocolError(f"Fragment {fragment} has no open offer.", now_what="Call snapshot first.")
        delta = self._seen(fragment, pending.base, "delta").sub_(pending.snapshot)
        return self._encoders[fragment].encode(delta, out)

    def resolve(self, fragment: int, merged: bool) -> None:
        """Close the open offer; the residual advances only if it was merged. Not during its encode."""
        self._encoders[fragment].settle(merged)
        pending, self._pending[fragment] = self._pending[fragment], None
        if pending is not None:
            self._spare[fragment] = pending.snapshot

    # ------------------------------------------------------------------ publishes

    def stage(self, fragment: int, body: Tensor) -> Tensor:
        """Compute the next base from the newest one (staged or held) and a published body.

        Off the training thread. Returns the new base, for its digest.
        """
        with self._swap:
            newest = self._staged[fragment]
            newest = self.base(fragment) if newest is None else newest
        staged = apply_update(newest, body, self.publish_codec, out=torch.empty_like(newest))
        with self._swap:
            self._staged[fragment] = staged
        return staged

    def stage_full(self, fragment: int, values: Tensor) -> None:
        """Stage a full fragment, for a learner on another base."""
        self._staged[fragment] = self._checked(fragment, values).clone()

    def unstage(self, fragment: int) -> None:
        """Forget a staged version: an earlier life of the syncer published it."""
        with self._swap:
            self._staged[fragment] = None

    def adopt(self, fragment: int, merged: bool, reset: bool = False) -> None:
        """Take the staged version in. Training thread, at a step boundary.

        `merged` is the verdict on the open offer and closes it; a False leaves it open for `resolve`.
        `reset` overwrites whatever the mode: the local values were rejected and may hold a NaN, which
        would survive every blend and rebase.
        """
        with self._swap:
            published, base = self._staged[fragment], self._bases[fragment]
            if published is None or (merged and self._pending[fragment] is None):
                missing = "publish is staged" if published is None else "offer is open that could be merged"
                raise ProtocolError(f"Fragment {fragment}: no {missing}.", now_what="Stage, then adopt once.")
            self._bases[fragment], self._staged[fragment] = published, None
        if self._adopt == "overwrite" or reset or base is None:
            self._scatter(fragment, published)
        elif self._adopt == "blend":
            local = self.gather(fragment, borrow("local", published.numel())).mul_(self._alpha)
            share = torch.mul(published, 1.0 - self._alpha, out=borrow("share", published.numel()))
            self._scatter(fragment, local.add_(share))
        else:
            self._rebase(fragment, published, base, merged)
        if merged:
            self.resolve(fragment, merged=True)

    def _rebase(self, fragment: int, published: Tensor, base: Tensor, merged: bool) -> None:
        pending = self._pending[fragment]
        origin = self._seen(fragment, base, "share")
        since = pending.snapshot if merged and pending is not None else origin
        local = self.gather(fragment, borrow("local", published.numel()))
        progress = local.sub_(since)
        if pending is not None and not merged:
            moved = pending.snapshot - origin
            self._pending[fragment] = _Pending(
                published, moved.add_(self._seen(fragment, published, "share"))
            )
        self._scatter(fragment, progress.add_(published))

    # ------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Tensor]:
        """Residuals by fragment, for the learner's own checkpoint."""
        return {
            f"residual.{index}": encoder.residual.clone()
            for index, encoder in enumerate(self._encoders)
            if encoder.residual is not None
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore residuals; fragments that are not named start without."""
        for index, encoder in enumerate(self._encoders):
            encoder.load(state.get(f"residual.{index}"))

    # ------------------------------------------------------------------ the model

    def _spans(self, fragment: int) -> Iterator[tuple[int, int, Unit]]:
        at = 0
        for unit in self.manifest.fragments[fragment].units:
            yield at, at + unit.numel, unit
            at += unit.numel

    def _scatter(self, fragment: int, values: Tensor) -> None:
        """Write flat f32 values into the parameters, whatever their type and layout."""
        with torch.no_grad():
            for low, high, unit in self._spans(fragment):
                parameter = self._parameters[unit.storage].detach()
                if parameter.is_contiguous():
                    parameter.view(-1)[unit.start : unit.stop].copy_(values[low:high])
                else:
                    flat = parameter.reshape(-1)
                    flat[unit.start : unit.stop].copy_(values[low:high])
                    parameter.copy_(flat.view(parameter.shape))

    def _seen(self, fragment: int, values: Tensor, role: str) -> Tensor:
        """A version as the model holds it, rounded where parameters are coarser, in a borrowed buffer."""
        seen = borrow(role, values.numel()).copy_(values)
        for low, high, unit in self._spans(fragment):
            dtype = self._parameters[unit.storage].dtype
            if dtype in (torch.bfloat16, torch.float16):
                seen[low:high].copy_(seen[low:high].to(dtype))
        return seen

    def _checked(self, fragment: int, values: Tensor) -> Tensor:
        numel = self.manifest.fragments[fragment].numel
        if values.numel() != numel or values.dtype != torch.float32:
            raise ModelError(
                f"Fragment {fragment} has {numel} f32 values, not {values.numel()} of {values.dtype}.",
                "They would land in the wrong parameters.",
                "Check that both sides hold the same manifest.",
            )
        return values.detach().reshape(-1)


def _parameters_of(model: nn.Module, manifest: Manifest) -> dict[str, nn.Parameter]:
    """Parameters by storage name, or `ModelError` naming the first that is not the manifest's."""
    found = trainable(model)
    here = Manifest(tuple(storage for storage, _ in found), manifest.fragments)
    difference = here.first_difference(manifest)
    if difference is not None:
        raise ModelError(
            f"This is not the model of the run: {difference}.",
            "Its values cannot be merged with the others'.",
            "Build the model with the run's configuration and code, and freeze the same parameters.",
        )
    return {storage.name: parameter for storage, parameter in found}


def _check_settings(adopt: str, blend_alpha: float) -> None:
    if adopt not in ADOPT_MODES:
        raise ConfigError(
            f"There is no way to adopt called {adopt!r}.",
            "A learner would not know what to do with its own progress.",
            f"Choose one of {', '.join(ADOPT_MODES)}.",
        )
    if not 0.0 <= blend_alpha <= 1.0:
        raise ConfigError(
            f"blend_alpha is {blend_alpha}.",
            "It is the share of the local value in a blend.",
            "Set it between 0 (overwrite) and 1 (ignore the publish).",
        )
