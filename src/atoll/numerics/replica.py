"""The learner's replica: what it holds of every fragment beside the model it trains.

    base      the bit pattern of a version, in f32, as the syncer serves it
    snapshot  the local values at the moment an offer was asked for; the offer is delta = base - snapshot
    staged    the next base, computed off the training thread, waiting for a step boundary
    residual  what the codec left unsaid of merged offers

Three kinds of callers, and the training thread never waits for the others:

    training thread      `snapshot` and `adopt`: copy one fragment, nothing more
    bookkeeping          `release`, `newest`, `put_staged`, `unstage`: exchange references
    one worker, in order `encode`, `settle`, `next_base`, `full_base`, `prefetch`: everything slow

The first two are called under one lock, the caller's; the worker holds none. That is safe because tensors
are replaced and never overwritten: the worker is given all it reads. A `Pending` keeps the base and
snapshot it was born with, so its offer may be released, and the next one taken, while its encode still
runs. Its snapshot is only reused once it is settled, which the worker does after the encode.

On a GPU a `Ferry` carries snapshots out and, in `overwrite`, staged versions in, so that the training
thread queues copies and waits for none. `blend` and `rebase` compute on the host, and hold the loop for it.

Adoption of a published fragment, in the words of `Adopt`:

    overwrite  local = published                            the paper
    blend      local = a * local + (1 - a) * published
    rebase     local = published + (local - snapshot)       if the offer was merged
               local = published + (local - base)           if not

In `rebase` an offer may still be open while another round's publish is adopted. The mark from which
progress is counted then moves along, mark = published + (mark - base), so that a later verdict finds the
progress made since the snapshot.

Parameters may be bf16 or f16: base and arithmetic stay f32, the model gets rounded values. A delta is
then counted from the base *as the model holds it*, rounded; otherwise every offer would drag the global
value towards the rounding of one learner. Differs: the paper does not speak of this.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from atoll.core.params import ADOPT_MODES, Adopt
from atoll.errors import ConfigError, ProtocolError
from atoll.numerics.codec import Codec
from atoll.numerics.feedback import Encoder
from atoll.numerics.ferry import Cargo, CudaDevice, Ferry
from atoll.numerics.local import LocalModel
from atoll.numerics.manifest import Manifest
from atoll.numerics.outer import apply_update
from atoll.numerics.scratch import borrow

__all__ = ["Pending", "Replica"]

NUM_SPARES = 2
"""Snapshot buffers kept per fragment: one offer in the queue of the worker, one open."""


@dataclass(slots=True, eq=False)
class Pending:
    """An offer taken at a boundary: delta = base - snapshot. Its tensors are not changed until settled."""

    base: Tensor
    snapshot: Tensor
    arrival: Any = None
    """On a GPU, the event after which the snapshot may be read."""
    settled: bool = False


@dataclass(slots=True)
class _Open:
    """The open offer of a fragment, and where `rebase` counts progress from if it is merged."""

    pending: Pending
    mark: Tensor


@dataclass(frozen=True, slots=True)
class _Staged:
    """The next base, and its copy on the GPU if there is one."""

    version: Tensor
    cargo: Cargo | None = None


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
        ferry: Ferry | None = None,
    ) -> None:
        """Call on the training thread.

        `feedback` None leaves error feedback to the codec: on for eight bits and fewer. `ferry` None
        makes one if the model is on a CUDA device.
        """
        _check_settings(adopt, blend_alpha)
        self.manifest = manifest
        self.publish_codec = publish_codec
        self._adopt = adopt
        self._alpha = blend_alpha
        self._local = LocalModel(model, manifest)
        keep_errors = offer_codec.wants_feedback if feedback is None else feedback
        self._encoders = [Encoder(offer_codec, f.numel, keep_errors) for f in manifest.fragments]
        count = len(manifest.fragments)
        self._bases: list[Tensor | None] = [None] * count
        self._open: list[_Open | None] = [None] * count
        self._staged: list[_Staged | None] = [None] * count
        self._taken: list[list[Pending]] = [[] for _ in range(count)]  # not settled yet
        self._spare: list[deque[Tensor]] = [deque(maxlen=NUM_SPARES) for _ in range(count)]
        self._lent = False  # the parameters hold the merged model for a while
        self._ferry = _ferry_for(self._local) if ferry is None else ferry
        if self._ferry is not None:  # pinned memory is slow to get, and a boundary should not wait for it
            for index, spares in enumerate(self._spare):
                spares.append(self._room_for_snapshot(index))

    # ------------------------------------------------------------------ whole fragments

    def gather(self, fragment: int, out: Tensor | None = None) -> Tensor:
        """Local values of a fragment, flat f32, in `out` if given."""
        return self._local.gather(fragment, self._room(fragment) if out is None else out)

    def load(self, fragment: int, values: Tensor) -> None:
        """Take a full fragment as base and as local values; an open offer and a staged publish go."""
        self._bases[fragment] = base = self.full_base(fragment, values)
        self.unstage(fragment)
        self.resolve(fragment, merged=False)
        self._local.scatter(fragment, base)

    def set_base_from_local(self, fragment: int) -> Tensor:
        """Make a copy of the local values the base (the first learner seeds version 0), and return it.

        Training thread, or before training starts.
        """
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

    def bases(self) -> list[Tensor | None]:
        """The version of every fragment, None where there is none yet. Not to be changed."""
        return list(self._bases)

    @contextmanager
    def global_weights(self) -> Iterator[None]:
        """Put the merged model, as this learner holds it, into the parameters; then the local values back.

        Training thread. The local values return bit for bit, also after an exception.
        """
        bases = [self.base(index) for index in range(len(self._bases))]
        self._check_own("global_weights")
        saved = self._local.save()
        self._lent = True
        try:
            for index, base in enumerate(bases):
                self._local.scatter(index, base)
            yield
        finally:
            self._local.restore(saved)
            self._lent = False

    # ------------------------------------------------------------------ offers

    def has_pending(self, fragment: int) -> bool:
        """Whether an offer on this fragment is open."""
        return self._open[fragment] is not None

    def snapshot(self, fragment: int) -> Pending:
        """Copy the local values for an offer. Training thread, at a step boundary."""
        self._check_own("snapshot")
        if self._open[fragment] is not None:
            raise ProtocolError(
                f"Fragment {fragment} already has an open offer.",
                "A second one could count the same progress twice.",
                "Abstain until the first is resolved.",
            )
        base, host = self.base(fragment), self._room_for_snapshot(fragment)
        if self._ferry is None:
            pending = Pending(base, self._local.gather(fragment, host))
        else:
            pending = Pending(base, host, self._ferry.lift(host, partial(self._local.gather, fragment)))
        self._open[fragment] = _Open(pending, pending.snapshot)
        self._taken[fragment].append(pending)
        return pending

    def encode(self, fragment: int, pending: Pending, out: Tensor | None = None) -> Tensor:
        """The body of an offer: base - snapshot, plus the residual. Worker."""
        if pending.settled:
            raise ProtocolError(
                f"Fragment {fragment}: this offer is settled.",
                "Its snapshot may hold another offer's values by now.",
                "Encode an offer before it is settled.",
            )
        delta = self._local.seen(fragment, pending.base, "delta").sub_(self._arrived(pending))
        return self._encoders[fragment].encode(delta, out)

    def release(self, fragment: int) -> None:
        """Close the open offer: a new snapshot may be taken at once, even if the encode still runs."""
        self._open[fragment] = None

    def settle(self, fragment: int, pending: Pending, merged: bool) -> None:
        """End an offer after its encode; the residual advances only if it was merged. Worker.

        A second verdict on the same offer changes nothing.
        """
        if pending.settled:
            return
        pending.settled = True
        self._encoders[fragment].settle(merged)
        self._taken[fragment].remove(pending)
        self._spare[fragment].append(self._arrived(pending))

    def resolve(self, fragment: int, merged: bool) -> None:
        """Release and settle the open offer, if there is one. Not during its encode."""
        open_offer = self._open[fragment]
        if open_offer is not None:
            self.release(fragment)
            self.settle(fragment, open_offer.pending, merged)

    # ------------------------------------------------------------------ publishes

    def newest(self, fragment: int) -> Tensor:
        """The version that the next publish builds on: staged, else the base."""
        staged = self._staged[fragment]
        return self.base(fragment) if staged is None else staged.version

    def next_base(self, fragment: int, newest: Tensor, body: Tensor) -> Tensor:
        """The version that a published body leads to from `newest`. Worker; changes nothing."""
        return apply_update(newest, body, self.publish_codec, out=torch.empty_like(newest))

    def full_base(self, fragment: int, values: Tensor) -> Tensor:
        """A checked copy of a full fragment, to be staged. Worker; changes nothing."""
        return self._local.checked(fragment, values).clone()

    def prefetch(self, version: Tensor) -> Cargo | None:
        """Begin to bring a version to the GPU; hand the result to `put_staged`. Worker.

        None where that does not help: on a CPU, in modes that compute on the host, or when too many
        versions are under way already.
        """
        if self._ferry is None or self._adopt != "overwrite":
            return None
        return self._ferry.prefetch(version)

    def put_staged(self, fragment: int, version: Tensor, cargo: Cargo | None = None) -> None:
        """Let the next boundary adopt this version, in place of one staged before."""
        self.unstage(fragment)
        self._staged[fragment] = _Staged(version, cargo)

    def unstage(self, fragment: int) -> None:
        """Forget a staged version: an earlier life of the syncer published it."""
        staged, self._staged[fragment] = self._staged[fragment], None
        if staged is not None:
            self.drop_cargo(staged.cargo)

    def drop_cargo(self, cargo: Cargo | None) -> None:
        """Give back what `prefetch` brought to the device, if it will not be staged after all."""
        if cargo is not None and self._ferry is not None:
            self._ferry.drop(cargo)

    def stage(self, fragment: int, body: Tensor) -> Tensor:
        """All of staging in one call, for callers without a worker. Returns the new base, for its digest."""
        staged = self.next_base(fragment, self.newest(fragment), body)
        self.put_staged(fragment, staged)
        return staged

    def stage_full(self, fragment: int, values: Tensor) -> None:
        """Stage a full fragment in one call, for a learner on another base."""
        self.put_staged(fragment, self.full_base(fragment, values))

    def adopt(self, fragment: int, merged: bool, reset: bool = False) -> None:
        """Take the staged version in. Training thread, or another while that one is held in `step`.

        `merged` is the verdict on the open offer and resolves it; a False leaves it open.
        `reset` overwrites whatever the mode: the local values were rejected and may hold a NaN, which
        would survive every blend and rebase.
        """
        self._check_own("adopt")
        staged, base = self._staged[fragment], self._bases[fragment]
        if staged is None or (merged and self._open[fragment] is None):
            missing = "publish is staged" if staged is None else "offer is open that could be merged"
            raise ProtocolError(f"Fragment {fragment}: no {missing}.", now_what="Stage, then adopt once.")
        published = staged.version
        self._bases[fragment], self._staged[fragment] = published, None
        if self._adopt == "overwrite" or reset or base is None:
            self._overwrite(fragment, staged)
            open_offer = self._open[fragment]
            if open_offer is not None:  # what came after its snapshot is gone
                open_offer.mark = published
        elif self._adopt == "blend":
            local = self.gather(fragment, borrow("local", published.numel())).mul_(self._alpha)
            share = torch.mul(published, 1.0 - self._alpha, out=borrow("share", published.numel()))
            self._local.scatter(fragment, local.add_(share))
        else:
            self._rebase(fragment, published, base, merged)
        if merged:
            self.resolve(fragment, merged=True)

    def rewind(self, fragment: int) -> None:
        """Give the local values up and go on from the base; an open offer and a staged publish stay.

        Training thread, at a step boundary.
        """
        self._check_own("rewind")
        base = self.base(fragment)
        self._local.scatter(fragment, base)
        open_offer = self._open[fragment]
        if open_offer is not None:  # what came after its snapshot is gone
            open_offer.mark = base

    def _overwrite(self, fragment: int, staged: _Staged) -> None:
        if staged.cargo is None or self._ferry is None:
            self._local.scatter(fragment, staged.version)
        else:
            self._ferry.land(staged.cargo, partial(self._local.scatter, fragment))

    def _rebase(self, fragment: int, published: Tensor, base: Tensor, merged: bool) -> None:
        open_offer = self._open[fragment]
        if open_offer is not None:
            self._arrived(open_offer.pending)
        origin = self._local.seen(fragment, base, "share")
        since = open_offer.mark if merged and open_offer is not None else origin
        progress = self.gather(fragment, borrow("local", published.numel())).sub_(since)
        if open_offer is not None and not merged:
            moved = open_offer.mark - origin
            open_offer.mark = moved.add_(self._local.seen(fragment, published, "share"))
        self._local.scatter(fragment, progress.add_(published))

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

    def memory_bytes(self) -> int:
        """What the replica holds now beside the model: bases, snapshots, staged versions, residuals."""
        held: list[Tensor | None] = [*self._bases, *(s.version for s in self._staged if s)]
        for index, encoder in enumerate(self._encoders):
            open_offer = self._open[index]
            held += [tensor for p in list(self._taken[index]) for tensor in (p.base, p.snapshot)]
            held += [*self._spare[index], *encoder.held(), open_offer.mark if open_offer else None]
        return sum({id(tensor): tensor.nbytes for tensor in held if tensor is not None}.values())

    def _room(self, fragment: int) -> Tensor:
        return torch.empty(self.manifest.fragments[fragment].numel, dtype=torch.float32, device="cpu")

    def _room_for_snapshot(self, fragment: int) -> Tensor:
        if self._spare[fragment]:
            return self._spare[fragment].pop()
        if self._ferry is None:
            return self._room(fragment)
        return self._ferry.pinned(self.manifest.fragments[fragment].numel)

    def _arrived(self, pending: Pending) -> Tensor:
        """The snapshot, once it is in host memory."""
        if self._ferry is not None and pending.arrival is not None:
            self._ferry.arrived(pending.arrival)
        return pending.snapshot

    def _check_own(self, call: str) -> None:
        if self._lent:
            raise ProtocolError(
                f"{call} was called inside global_weights.",
                "The parameters hold the merged model now, not this learner's values.",
                "Leave the `with` block first.",
            )


def _ferry_for(local: LocalModel) -> Ferry | None:
    if local.device.type != "cuda":
        return None
    return Ferry(CudaDevice(local.device), max(fragment.numel for fragment in local.manifest.fragments))


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
