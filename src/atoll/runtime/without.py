"""What the model would be without one learner: its offers are left out of the merges since some tick.

Each fragment is folded twice from there on. One fold is the run as it was, every digest compared. The other
takes the rounds in which the learner had a part from their offers, merged again without it; where it
was alone, the round is skipped, so values and momentum stay. Weights are those that the syncer would give
to the others alone.

The others' offers are taken as they were made. In a run without the learner they would have started from
other versions and offered something else: this shows what its offers did, not what would have happened.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from atoll.core.records import RoundRecord
from atoll.errors import StoreError
from atoll.numerics.manifest import Manifest
from atoll.numerics.outer import OuterState
from atoll.runtime.past import Broken, Past, open_past, which
from atoll.runtime.replay import Merges, Progress

__all__ = ["CAVEAT", "Without", "run_without"]

CAVEAT = (
    "The others' offers are taken as they were made: without it they would have trained from other versions."
)


@dataclass(slots=True)
class Without:
    """The end of a run, and what it would be without one learner's offers."""

    learner: str
    manifest: Manifest
    merges: int
    """Of the real run at its end."""
    start: str
    num_rounds: int = 0
    """Merges since the tick."""
    num_changed: int = 0
    """Of them merged again without it."""
    num_skipped: int = 0
    """Of them skipped: it was alone."""
    distances: list[float] = field(default_factory=list)
    """By fragment: |other - real| / |real|."""
    real: list[Tensor] = field(default_factory=list)
    other: list[Tensor] = field(default_factory=list)


def run_without(
    run_dir: Path, learner: str, since: int | None = None, progress: Progress | None = None
) -> Without:
    """Merge again, without a learner, what was merged at tick `since` or later; by default all that is kept.

    Raises `StoreError` if it had no part in that, if its rounds were not kept, or if they are damaged.
    """
    past = open_past(run_dir)
    if since is not None and past.start.name:
        past.check_reach(since - 1)
    before = [past.start.versions[p] if since is None else past.version_at(p, since - 1) for p in past.chains]
    _check_part(past, before, learner, since)
    result = Without(learner, past.manifest, past.view.state.merges, str(past.start))
    try:
        _Run(past, before, result, progress).run()
    except Broken as error:
        raise StoreError(
            f"The run cannot be computed again: {error}.",
            "What it would be without a learner cannot be told.",
            "See `atoll replay` for everything that is damaged.",
        ) from error
    return result


@dataclass
class _Run:
    past: Past
    before: list[int]
    result: Without
    progress: Progress | None
    num_done: int = 0

    def run(self) -> None:
        past, merges = self.past, Merges(self.past)
        total = sum(len(past.after(p, past.start.versions[p])) for p in past.chains)
        for p, begins in enumerate(self.before):
            state = past.base(p)
            other = state if begins > past.start.versions[p] else _copy(state)
            for record in past.after(p, past.start.versions[p]):
                delta = past.delta(record)
                past.advance(state, record, delta)
                if record.version == begins:
                    other = _copy(state)
                elif record.version > begins:
                    self._go_on(other, record, delta, merges)
                self.num_done += 1
                if self.progress is not None:
                    self.progress(self.num_done, total)
            self.result.real.append(state.served)
            self.result.other.append(other.served)
            self.result.distances.append(_distance(other.served, state.served))

    def _go_on(self, other: OuterState, record: RoundRecord, delta: Tensor, merges: Merges) -> None:
        """The same round without the learner."""
        result, names = self.result, [part.name for part in record.contributors]
        result.num_rounds += 1
        if result.learner not in names:
            self.past.fold(other, record, delta)
        elif names == [result.learner]:
            result.num_skipped += 1
        else:
            again = merges.again(record, without=result.learner)
            if again is None:
                raise StoreError(
                    f"The offers of {which(record)} were not kept.",
                    f"Its merge cannot be computed without {result.learner}.",
                    "Start runs with tape.keep_offers = true, or choose a later --since.",
                )
            self.past.fold(other, record, again)
            result.num_changed += 1


def _check_part(past: Past, before: list[int], learner: str, since: int | None) -> None:
    records = [record for p, version in enumerate(before) for record in past.after(p, version)]
    names = sorted({part.name for record in records for part in record.contributors})
    if learner not in names:
        when = "what is kept of the run" if since is None else f"the merges since tick {since:,}"
        raise StoreError(
            f"{learner} has no part in {when}.",
            "Without it the model would be the same.",
            f"Name one of: {', '.join(names) or 'nobody; nothing was merged'}.",
        )


def _copy(state: OuterState) -> OuterState:
    return OuterState(state.served.clone(), state.remainder.clone(), state.momentum.clone())


def _distance(other: Tensor, real: Tensor) -> float:
    apart, length = float((other - real).double().norm()), float(real.double().norm())
    return apart / length if length else (math.inf if apart else 0.0)
