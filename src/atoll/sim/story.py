"""A tape in plain words: who died, who came back, what was merged, what went wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from atoll.core import commands as do
from atoll.core import events as ev
from atoll.core import messages as msg
from atoll.core import records as rec
from atoll.invariants import Violation
from atoll.tape.entries import SYNCER, Entry, Fault, Milestone, Stored

__all__ = ["Account", "Line", "account", "narrate"]

MAX_QUIET_MERGES = 6
"""Merges in a row that are told as one line."""


@dataclass(frozen=True, slots=True)
class Line:
    """One sentence of the story. `mood`: fault, good, plain, wrong."""

    at_ns: int
    text: str
    mood: str = "plain"


def narrate(
    entries: Iterable[Entry], violations: Iterable[Violation] = (), *, brief: bool = False
) -> Iterator[Line]:
    """Tell a tape; runs of calm merges become one sentence each. `brief` leaves out dropped offers."""
    pending = sorted(violations, key=lambda violation: violation.at_ns)
    calm: list[tuple[int, rec.RoundRecord]] = []
    for entry in entries:
        while pending and pending[0].at_ns < entry.at_ns:
            yield from _flush(calm)
            yield Line(pending[0].at_ns, f"BROKEN {pending.pop(0)}", "wrong")
        item = entry.item
        if isinstance(item, Stored) and isinstance(item.record, rec.RoundRecord):
            calm.append((entry.at_ns, item.record))
            if len(calm) >= MAX_QUIET_MERGES:
                yield from _flush(calm)
            continue
        line = _line(entry)
        if line is not None and not (brief and _is_drop(item)):
            yield from _flush(calm)
            yield line
    yield from _flush(calm)
    for violation in pending:
        yield Line(violation.at_ns, f"BROKEN {violation}", "wrong")


def _is_drop(item: object) -> bool:
    return isinstance(item, do.Note) and item.kind == "dropped"


def _flush(calm: list[tuple[int, rec.RoundRecord]]) -> Iterator[Line]:
    if not calm:
        return
    parts: Counter[str] = Counter()
    for _, record in calm:
        parts.update(part.name for part in record.contributors)
    who = ", ".join(f"{name} x{count}" for name, count in sorted(parts.items()))
    fragments = ", ".join(f"{record.fragment}v{record.version}" for _, record in calm)
    noun = "merge" if len(calm) == 1 else "merges"
    yield Line(calm[0][0], f"{len(calm)} {noun} with {who} (fragment v version: {fragments})", "good")
    calm.clear()


def _line(entry: Entry) -> Line | None:
    item, at_ns = entry.item, entry.at_ns
    match item:
        case Fault():
            detail = f" ({item.detail})" if item.detail else ""
            return Line(at_ns, f"FAULT {item.kind} on {item.target}{detail}", "fault")
        case Milestone(name):
            return Line(at_ns, _MILESTONES[name]) if name in _MILESTONES else None
        case ev.Booted():
            return Line(at_ns, "the syncer boots")
        case Stored(rec.EpochRecord(epoch, rollbacks, t)) if t >= 0:
            return Line(
                at_ns, f"an operator goes back to tick {t}: epoch {epoch}, {len(rollbacks)} fragments"
            )
        case Stored(rec.EpochRecord(epoch, rollbacks)):
            lost = f", having lost {len(rollbacks)} fragments' newest versions" if rollbacks else ""
            return Line(at_ns, f"the syncer is in epoch {epoch}{lost}")
        case Stored(rec.SeedRecord() as record):
            return Line(at_ns, f"{record.source} seeds version 0 of all {len(record.digests)} fragments")
        case Stored(rec.FinishRecord()):
            return Line(at_ns, "the run is finished", "good")
        case do.Note() if entry.actor == SYNCER:
            return _note(at_ns, item)
        case do.Ticked(start, end, True):
            return Line(at_ns, f"t jumps from {start} to {end}: the rounds in between do not fire")
    return None


def _note(at_ns: int, note: do.Note) -> Line | None:
    where = f"fragment {note.fragment}: " if note.fragment >= 0 else ""
    match note.kind:
        case "admitted":
            return Line(at_ns, f"{note.who} is admitted ({note.reason})")
        case "lost" | "refused" | "quarantined" | "released":
            return Line(at_ns, f"{note.who} is {note.kind}: {note.reason}")
        case "back" | "left":
            return Line(at_ns, f"{note.who} {_MOVES[note.kind]}: {note.reason}")
        case "cancelled" | "store" | "damage" | "quorum" | "drain":
            return Line(at_ns, f"{where}{note.kind}: {note.reason}")
        case "dropped":
            return Line(at_ns, f"{where}offer of {note.who} dropped, {note.reason}")
    return None


_MOVES = {"back": "is back", "left": "left"}
_MILESTONES = {
    "healed": "all faults end; from here on something right must happen",
    "live": "every fragment has had its chance to merge",
    "finish": "the run is asked to finish",
}


@dataclass(slots=True)
class Account:
    """One learner's tokens, per fragment on average, over all its lives."""

    name: str
    lives: int = 0
    trained: int = 0
    merged: int = 0
    overwritten: int = 0
    dropped: int = 0
    lost: int = 0
    open: int = 0


def account(entries: Iterable[Entry], num_fragments: int) -> list[Account]:
    """Where every token went. Sums are over fragments: a token counts once for each."""
    books: dict[str, Account] = {}
    actors: dict[str, str] = {}
    trained: Counter[str] = Counter()
    settled: Counter[str] = Counter()
    merged: Counter[tuple[str, int]] = Counter()
    incarnations: dict[str, int] = {}
    known: Counter[str] = Counter()
    last: set[str] = set()
    for _, actor, item in entries:
        match item:
            case ev.Started():
                book = books.setdefault(item.name, Account(item.name))
                book.lives += 1
                actors[actor] = item.name
                last = {a for a in last if actors[a] != item.name} | {actor}
            case ev.Stepped():
                trained[actor] += item.tokens * num_fragments
            case do.Tell(msg.Report() as report):
                incarnations[actor] = report.incarnation
            case do.Settle():
                settled[actor] += item.end - item.start
                book = books[actors[actor]]
                if item.fate == "merged":
                    known[actor] += item.end - item.start
                elif item.fate == "overwritten":
                    book.overwritten += item.end - item.start
                else:
                    book.dropped += item.end - item.start
            case Stored(rec.RoundRecord() as record):
                for part in record.contributors:
                    merged[part.name, part.incarnation] += part.end - part.start
    for actor, name in actors.items():
        book = books[name]
        book.trained += trained[actor]
        in_commits = merged[name, incarnations.get(actor, 0)]
        book.merged += in_commits
        rest = trained[actor] - settled[actor] - (in_commits - known[actor])
        if actor in last:
            book.open += rest
        else:
            book.lost += rest
    return sorted(books.values(), key=lambda book: book.name)
