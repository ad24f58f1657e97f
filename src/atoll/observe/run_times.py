"""What stopping and coming back cost in a real run: times between events on its tapes.

Nearly everything is measured at the syncer: its tape has every message that a learner sent and, once the
machine is run again (`tape.replay.expand`), every decision that followed. All times are therefore on the
syncer's clock, which is monotonic; across a restart of its machine they are on that machine's time of day.
Only `step_s` is on the learners' own clocks: they report how long their steps took.

A dead process writes nothing any more, and the last moment of its tape, at most about a second, is lost with
it. So a death is dated by the last sign of life that anybody has: for a learner the last message that the
syncer received or the last line of its own tape, for a syncer the last line of its tape or the last message
on a learner's, whichever is later. Learners' tapes are used if they lie in the run directory and were
written on the syncer's machine, because clocks of two machines cannot be compared.

What cannot be told is left out. A learner that said goodbye did not die, and neither did one that still
spoke after its successor was admitted. A syncer that had finished, or whose operator went back to an earlier
tick, was not restarted by an accident. An operator who stops a syncer and starts it again the next day leaves
the same tape as a crash, though: look at `max_s`.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from atoll.core import commands as do
from atoll.core import events as ev
from atoll.core import messages as msg
from atoll.core.records import EpochRecord, FinishRecord, MemberRecord, Record, RoundRecord
from atoll.errors import AtollError, TapeError
from atoll.runtime import tape_file
from atoll.runtime.joining import sizes_of
from atoll.runtime.store import RunView, read_run
from atoll.tape.entries import Clock, Entry, Image, Stored
from atoll.tape.replay import expand

__all__ = ["Measured", "RunTimes", "measure", "read_run_times"]


@dataclass(frozen=True, slots=True)
class Measured:
    """One kind of time, measured `count` times, at least once."""

    mean_s: float
    median_s: float
    min_s: float
    max_s: float
    count: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RunTimes:
    """The times of one run. None: that did not happen, or cannot be told from its tapes."""

    run: str
    learners: int
    """Names that took part."""
    wall_s: float
    """From the first to the last line of the syncer's tape, outages included. A tape that was cut begins
    later than its run, and so does everything here."""
    step_s: Measured | None
    """Over learners: the median time of one's steps, from boundary to boundary, on its own clock, as it
    reported them. What Atoll held is in it."""
    restart_s: Measured | None
    """Over deaths of learners that came back: from the last sign of life of one incarnation until the syncer
    receives the first report of the next one that counts a step. If the syncer was restarted in between, it
    counts only if the dead learner's own tape tells when it died."""
    rejoin_s: Measured | None
    """Over admissions of a second or later incarnation: from the commit of the admission (when the welcome is
    sent) until the commit of the first round that has an offer of it merged. Not if the syncer was restarted
    in between."""
    merge_s: Measured | None
    """Over rounds that merged: from opening one (when the learners are asked) until its commit (when it is
    published). Waiting for offers and for the grace window is in it."""
    syncer_restart_s: Measured | None
    """Over lives of the syncer after the first: from the last sign of life of the one before until the commit
    of the new epoch, when it lets learners in."""
    goodput: float | None = None
    """As `atoll status` gives it, at most a second old while the run goes on."""
    participation: float | None = None
    """As `atoll status` gives it."""


def read_run_times(path: Path) -> RunTimes:
    """Measure the run in a directory, which may be going on: it is only read.

    Raises `StoreError` if there is no run, `TapeError` if its tape is damaged.
    """
    view = read_run(path)
    status = _status(path)
    times = measure(_tape(view), _learner_tapes(path), run=str(status.get("run") or path.resolve().name))
    return replace(times, goodput=_share(status, "goodput"), participation=_share(status, "participation"))


def measure(
    tape: Iterable[Entry], learner_tapes: Iterable[Iterable[Entry]] = (), *, run: str = ""
) -> RunTimes:
    """Measure a run on the syncer's tape, with its commands, and on the learners', which need none.

    The latter are read only if somebody died.
    """
    scan = _Scan()
    for entry in tape:
        scan.read(entry)
    signs = _signs(learner_tapes, scan.clocks) if scan.returns or scan.outages else _Signs()
    return RunTimes(
        run=run,
        learners=len(scan.lives),
        wall_s=(scan.last_ns - scan.first_ns) / 1e9 if scan.first_ns is not None else 0.0,
        step_s=_measured([statistics.median(steps) for steps in scan.steps.values()]),
        restart_s=_measured([found for gone in scan.returns for found in _restart(gone, signs)]),
        rejoin_s=_measured(scan.rejoins),
        merge_s=_measured(scan.merges),
        syncer_restart_s=_measured([found for gone in scan.outages for found in _outage(gone, signs)]),
    )


class _Moment(NamedTuple):
    """When, and in which life of the syncer."""

    at_ns: int
    boot: int


class _Death(NamedTuple):
    """The end of an incarnation, as the syncer saw it."""

    actor: str
    """Its name on its own tape; "" if that is not known."""
    heard: _Moment
    replaced_ns: int
    """When the next one was admitted."""


class _Return(NamedTuple):
    """A learner that died and stepped again."""

    death: _Death
    stepped: _Moment


class _Outage(NamedTuple):
    """The syncer was away."""

    epoch: int
    """That ended."""
    last_ns: int
    back_ns: int


@dataclass(slots=True)
class _Life:
    """The newest incarnation of a learner."""

    incarnation: int
    actor: str = ""
    heard: _Moment | None = None
    clock: int | None = None
    has_left: bool = False
    admitted: _Moment | None = None
    """Until its first offer is merged; only of those that come back."""
    death: _Death | None = None
    """Of the one before, until this one steps."""


@dataclass(slots=True)
class _Scan:
    """Reads the syncer's tape, line by line. Times are of day, in nanoseconds."""

    clocks: dict[str, int] = field(default_factory=dict)
    offset_ns: int = 0
    first_ns: int | None = None
    last_ns: int = 0
    boot: int = 0
    is_serving: bool = False
    """An epoch has begun, and neither the run nor this stretch of it was ended on purpose."""
    down_ns: int | None = None
    """Since when the syncer is away."""
    lives: dict[str, _Life] = field(default_factory=dict)
    opened: dict[tuple[int, int], int] = field(default_factory=dict)
    pending: dict[int, Record] = field(default_factory=dict)
    steps: dict[str, list[int]] = field(default_factory=dict)
    merges: list[int] = field(default_factory=list)
    rejoins: list[int] = field(default_factory=list)
    returns: list[_Return] = field(default_factory=list)
    outages: list[_Outage] = field(default_factory=list)

    def read(self, entry: Entry) -> None:
        """Take one line in."""
        match entry.item:
            case Clock(boot, wall_ns):
                # Named again at every snapshot; the time of day may have been set since.
                self.offset_ns = self.clocks.setdefault(boot, wall_ns)
                return
            case Image():  # at the head of a cut tape it stands before its clock
                self.is_serving = True
                return
            case Stored(record=EpochRecord(t=t)) if t >= 0:  # an operator's, who says no clock
                self.is_serving = False
                return
        now_ns = self.offset_ns + entry.at_ns
        match entry.item:
            case ev.Booted():
                self._booted()
            case ev.Received(message=message):
                self._received(now_ns, message)
            case do.Opened(fragment=fragment, round=number):
                self.opened[fragment, number] = now_ns
            case do.Commit(ticket=ticket, record=record):
                self.pending[ticket] = record
            case ev.Committed(ticket=ticket, ok=True) if ticket in self.pending:
                self._committed(now_ns, self.pending.pop(ticket))
        self.first_ns = now_ns if self.first_ns is None else self.first_ns
        self.last_ns = max(self.last_ns, now_ns)

    def _booted(self) -> None:
        if self.is_serving:  # one that never came so far prolongs the outage
            self.down_ns = self.last_ns
        self.is_serving = False
        self.boot += 1
        self.opened.clear()
        self.pending.clear()

    def _committed(self, now_ns: int, record: Record) -> None:
        match record:
            case RoundRecord():
                self._merged(now_ns, record)
            case MemberRecord():
                self._admitted(now_ns, record)
            case EpochRecord():
                if self.down_ns is not None:
                    self.outages.append(_Outage(record.epoch - 1, self.down_ns, now_ns))
                self.is_serving, self.down_ns = True, None
            case FinishRecord():
                self.is_serving = False

    def _merged(self, now_ns: int, record: RoundRecord) -> None:
        opened_ns = self.opened.pop((record.fragment, record.round), None)
        if opened_ns is not None:
            self.merges.append(now_ns - opened_ns)
        for part in record.contributors:
            life = self.lives.get(part.name)
            if life is not None and life.incarnation == part.incarnation and life.admitted is not None:
                if life.admitted.boot == self.boot:
                    self.rejoins.append(now_ns - life.admitted.at_ns)
                life.admitted = None

    def _admitted(self, now_ns: int, record: MemberRecord) -> None:
        old = self.lives.get(record.name)
        new = _Life(record.incarnation, f"{record.name}#{record.life:012x}")
        if record.incarnation > 1:
            new.admitted = _Moment(now_ns, self.boot)
        if old is not None and old.heard is not None and not old.has_left:
            new.death = _Death(old.actor, old.heard, now_ns)
        self.lives[record.name] = new

    def _received(self, now_ns: int, message: msg.Message) -> None:
        name, incarnation = getattr(message, "name", ""), getattr(message, "incarnation", 0)
        if not (name and incarnation):  # a hello of a life that was not admitted yet
            return
        life = self.lives.setdefault(name, _Life(incarnation))  # a cut tape does not tell of its admission
        if incarnation != life.incarnation:
            if incarnation < life.incarnation:
                life.death = None  # it lives
            return
        life.heard = _Moment(now_ns, self.boot)
        if isinstance(message, msg.Leave):
            life.has_left = True
        elif isinstance(message, msg.Report):
            self._reported(life, message, life.heard)

    def _reported(self, life: _Life, report: msg.Report, now: _Moment) -> None:
        """The first report of a life comes with its welcome, before any step."""
        if life.clock is not None and report.clock > life.clock:
            if report.step_ns:  # unknown for the first step of a life
                self.steps.setdefault(report.name, []).append(report.step_ns)
            if life.death is not None:
                self.returns.append(_Return(life.death, now))
                life.death = None
        life.clock = report.clock


@dataclass(slots=True)
class _Signs:
    """The last signs of life on the learners' tapes: of each learner's life, and of each epoch."""

    lives: dict[str, int] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)


def _signs(tapes: Iterable[Iterable[Entry]], clocks: dict[str, int]) -> _Signs:
    signs = _Signs()
    for tape in tapes:
        offset_ns = None
        for at_ns, actor, item in tape:
            if isinstance(item, Clock):
                offset_ns = clocks.get(item.boot)
            elif offset_ns is not None:
                signs.lives[actor] = max(signs.lives.get(actor, 0), offset_ns + at_ns)
                if isinstance(item, ev.Received):
                    epoch = item.message.epoch
                    signs.epochs[epoch] = max(signs.epochs.get(epoch, 0), offset_ns + at_ns)
    return signs


def _restart(found: _Return, signs: _Signs) -> Iterator[int]:
    """How long a return took, if that can be told."""
    death, stepped = found
    own_ns = signs.lives.get(death.actor)
    if own_ns is None and death.heard.boot != stepped.boot:
        return  # it may have died long after the syncer did
    died_ns = max(death.heard.at_ns, own_ns or 0)
    if died_ns <= death.replaced_ns:
        yield stepped.at_ns - died_ns


def _outage(found: _Outage, signs: _Signs) -> Iterator[int]:
    """How long the syncer was away, if the clocks of before and after can be compared."""
    heard_ns = signs.epochs.get(found.epoch, 0)
    if heard_ns > found.back_ns:  # a learner that was busy took in late what had come long before
        heard_ns = 0
    last_ns = max(found.last_ns, heard_ns)
    if last_ns <= found.back_ns:
        yield found.back_ns - last_ns


def _measured(times_ns: Sequence[float]) -> Measured | None:
    if not times_ns:
        return None
    times_s = [time_ns / 1e9 for time_ns in times_ns]
    middle = statistics.fmean(times_s), statistics.median(times_s)
    return Measured(*middle, min(times_s), max(times_s), len(times_s))


def _tape(view: RunView) -> Iterator[Entry]:
    """The syncer's tape with its commands; empty if no learner ever joined."""
    if view.manifest is None:
        return
    try:
        yield from expand(view.entries(), sizes_of(view.manifest, view.config))
    except AtollError:
        raise
    except Exception as error:  # the machine stumbled over a tape with a gap
        raise TapeError(
            f"The tape in {view.run_dir} cannot be replayed: {type(error).__name__}: {error}.",
            "What the syncer decided, and when, is not known.",
            "See `atoll replay` for what is wrong with it, or measure another run.",
        ) from error


def _learner_tapes(run_dir: Path) -> Iterator[Iterator[Entry]]:
    for path in sorted((run_dir / "learners").glob("*/tape-*.db")):
        yield _read_only(path)


def _read_only(path: Path) -> Iterator[Entry]:
    """As far as the tape can be read: it only makes other times more exact."""
    with contextlib.suppress(sqlite3.Error, TapeError):
        db = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
        with contextlib.closing(db):
            yield from tape_file.read(db)


def _status(run_dir: Path) -> dict[str, Any]:
    """The last status that the syncer wrote down, once a second; empty if there is none."""
    try:
        status = json.loads((run_dir / "status.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return status if isinstance(status, dict) else {}


def _share(status: dict[str, Any], key: str) -> float | None:
    value = status.get(key)
    return float(value) if isinstance(value, (int, float)) else None
