"""Replay: a run computed again from what its directory keeps, every digest compared.

Three layers, each the proof of another part of the run:

    decisions   the machines are given the events of the tapes again, decide the same, and no invariant is
                broken (`verdict`)
    fold        from the oldest base that is kept through every delta; after each, the values must have the
                digest in the record (`past`)
    merges      where the offers were kept (`offers`), they are decoded and merged again with the recorded
                contributors; the result must have the digest of the delta in the record

A version that was rolled back counts no more, and is not computed again. What agrees may still be less than
there was: a database that has lost its end (`store.head`) is a problem too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

from torch import Tensor

from atoll.core import events as ev
from atoll.core import messages as msg
from atoll.core.records import Contributor, RoundRecord
from atoll.core.weights import capped, token_weight
from atoll.errors import AtollError, StoreError
from atoll.numerics.codec import codec_for
from atoll.numerics.merge import merge
from atoll.numerics.outer import digest
from atoll.runtime.offers import FOLDER, body_digest, offers_path, read_offers
from atoll.runtime.past import Broken, Past, open_past, which
from atoll.runtime.store import read_run
from atoll.runtime.verdict import Verdict, check_run

__all__ = ["End", "Merges", "Progress", "Replayed", "replay_run"]

MAX_LOOKS = 5
"""How often a running syncer may delete files under a reader before they count as missing."""

Progress: TypeAlias = Callable[[int, int], None]
"""Called with the number of commits that were done, and that there are."""


@dataclass(frozen=True, slots=True)
class End:
    """Where a fragment was taken to."""

    fragment: int
    version: int
    digest: str
    t: int
    """The tick of its commit; 0 for version 0."""


@dataclass(slots=True)
class Replayed:
    """What a replay found."""

    start: str = ""
    """Where the fold started, and why there."""
    since: int = 0
    """Merges that lie before that."""
    commits: int = 0
    """Commits folded, their digests compared."""
    merges: int = 0
    """Commits among them that were merged again from their offers."""
    rolled_back: int = 0
    decisions: Verdict | None = None
    """None if they were not looked at."""
    ends: list[End] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    """Of every fragment at its end, if asked for."""

    @property
    def ok(self) -> bool:
        """Whether every digest agrees."""
        return not self.problems

    @property
    def verified(self) -> str:
        """`merge` if all commits were merged again, else `fold`."""
        return "merge" if self.commits and self.merges == self.commits else "fold"


def replay_run(
    run_dir: Path, *, until: int | None = None, keep_values: bool = False, progress: Progress | None = None
) -> Replayed:
    """Compute a run again; with `until`, the model as of that tick, and not the decisions.

    Raises `StoreError` if there is no run, or nothing is kept of that tick. Damage is no exception: it is
    among the problems.
    """
    try:
        for _ in range(MAX_LOOKS):
            past = open_past(run_dir)
            result = _Replay(past, until, keep_values, progress).run()
            if result.ok or not past.has_moved():
                break
        if lost := past.view.loss():
            result.problems.insert(0, f"run.db: {lost}")
        if until is None:
            result.decisions = verdict = _decisions(run_dir)
            result.problems += verdict.violations + [f"decisions: {problem}" for problem in verdict.replay]
    except _OutOfReach as error:
        raise error.args[0] from None
    except StoreError as error:
        if not (run_dir / "run.db").exists():
            raise
        return Replayed(problems=[error.what])
    return result


def _decisions(run_dir: Path) -> Verdict:
    """The verdict on the tapes; if a run is going on, they are read again when they do not fit together."""
    for _ in range(MAX_LOOKS):
        newest = read_run(run_dir).records[-1:]
        verdict = check_run(run_dir)
        if verdict.ok or read_run(run_dir).records[-1:] == newest:
            break
    return verdict


class _OutOfReach(Exception):
    """Holds the `StoreError` for a tick of which nothing is kept; that is no damage."""


@dataclass
class _Replay:
    past: Past
    until: int | None
    keep_values: bool
    progress: Progress | None
    result: Replayed = field(default_factory=Replayed)

    def run(self) -> Replayed:
        past, result = self.past, self.result
        if self.until is not None:
            try:
                past.check_reach(self.until)
            except StoreError as error:
                raise _OutOfReach(error) from None
        result.start, result.since = str(past.start), past.start.merges
        result.rolled_back = past.num_rolled_back
        merges = Merges(past)
        for p in past.chains:
            try:
                self._replay(p, merges)
            except Broken as error:
                result.problems.append(str(error))
        return result

    @cached_property
    def _total(self) -> int:
        past = self.past
        return sum(past.version_at(p, self.until) - past.start.versions[p] for p in past.chains)

    def _replay(self, p: int, merges: Merges) -> None:
        past, result = self.past, self.result
        state, version = past.base(p), past.start.versions[p]
        for record in past.after(p, version, past.version_at(p, self.until)):
            delta = past.delta(record)
            result.merges += self._merged_again(record, merges)
            past.advance(state, record, delta)
            version, result.commits = record.version, result.commits + 1
            if self.progress is not None:
                self.progress(result.commits, self._total)
        result.ends.append(End(p, version, digest(state.served), past.t_of(p, version)))
        if self.keep_values:
            result.values.append(state.served)

    def _merged_again(self, record: RoundRecord, merges: Merges) -> bool:
        """Whether the offers are there and lead to the delta; a wrong one is a problem of its own."""
        try:
            delta = merges.again(record)
            if delta is not None and digest(delta) != record.delta_digest:
                raise Broken(f"{which(record)}: its offers, merged again, do not give its delta")
        except Broken as error:
            self.result.problems.append(str(error))
            return False
        return delta is not None


@dataclass
class Merges:
    """Merges rounds again from the offers that were kept."""

    past: Past

    def again(self, record: RoundRecord, without: str = "") -> Tensor | None:
        """The delta of a round, merged from its offers, or from all but one learner's.

        None if the offers were not kept. Raises `Broken` if they are not what was merged then.
        """
        view = self.past.view
        path = offers_path(view.run_dir / FOLDER, record)
        try:
            bodies = read_offers(view.files, path)
            for part in record.contributors:
                self._check(record, part, bodies)
            parts = [part for part in record.contributors if part.name != without]
            weights = [part.weight for part in parts] if not without else self._weights(parts)
            return merge(
                [bodies[part.name] for part in parts],
                weights,
                codec_for(view.config.codec.up),
                self.past.manifest.fragments[record.fragment],
                scales=[part.scale for part in parts],
            )
        except FileNotFoundError:
            return None
        except (OSError, ValueError, AtollError) as error:
            why = error.what if isinstance(error, AtollError) else str(error)
            raise Broken(f"{which(record)}: {FOLDER}/{path.name} cannot be used: {why}") from error

    def _check(self, record: RoundRecord, part: Contributor, bodies: dict[str, Tensor]) -> None:
        """A contributor's body must be there, and be one that came in that round."""
        if part.name not in bodies:
            raise ValueError(f"it lacks the body of {part.name}")
        taped = self._taped.get((record.epoch, record.fragment, record.round, part.name))
        if taped and body_digest(bodies[part.name]) not in taped:
            raise ValueError(f"the body of {part.name} is not the one on the tape")

    def _weights(self, parts: list[Contributor]) -> list[float]:
        """As the syncer weighs these contributors alone."""
        weights = [token_weight(part.end - part.start, part.steps) for part in parts]
        return capped(weights, self.past.config.guard.max_share)

    @cached_property
    def _taped(self) -> dict[tuple[int, int, int, str], list[str]]:
        """Digests of the bodies that came in, as far as the tape reaches back and can be read."""
        found: dict[tuple[int, int, int, str], list[str]] = {}
        try:
            for _, _, item in self.past.view.entries():
                if isinstance(item, ev.Received) and isinstance(item.message, msg.Body):
                    body = item.message
                    key = (body.epoch, body.fragment, body.round, body.name)
                    found.setdefault(key, []).append(body.digest)
        except AtollError:
            pass  # a damaged tape is what the decisions are checked for
        return found
