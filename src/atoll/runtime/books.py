"""What the syncer can tell about its run: counters per learner, and the status made of them.

The books decide nothing. They listen to what the machine hears, commands and commits, and to the learners'
telemetry. Headline numbers are defined in the design:

    goodput        sum over learners of steps kept x own median step time / time since first admission
    participation  offers merged / (rounds ended x learners live when the round opened)
    stall          time held by step() / wall time

A step is kept unless its incarnation died before it was offered.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any

from atoll.config import RunConfig
from atoll.core import commands as do
from atoll.core import messages as msg
from atoll.core.members import Session
from atoll.core.records import RoundRecord
from atoll.core.syncer import SyncerMachine
from atoll.runtime.disk_trouble import DiskTrouble, What
from atoll.wire import messages as wire

__all__ = ["Books", "LearnerBook"]

log = logging.getLogger("atoll")

NOTES_KEPT = 50
LARGEST = 1e38
"""Of a loss or a pace; the product of two still is a number."""
SAMPLES_KEPT = 512
SHOWN_NOTES = frozenset(
    (
        "admitted",
        "back",
        "clipped",
        "damage",
        "drain",
        "fenced",
        "finished",
        "left",
        "lost",
        "moments",
        "quarantined",
        "quorum",
        "refused",
        "released",
    )
)
CRASH_COST = {
    "merge": "nothing: every merge is on disk before anybody hears of it",
    "cycle": "at most the merges since the end of the last cycle",
    "snapshot": "at most the merges since the last snapshot",
}

UNHEARD = -(1 << 60)
"""Instead of a clock that nobody has told yet."""


@dataclass(slots=True)
class LearnerBook:
    """Everything counted about one name."""

    name: str
    admitted_ns: int
    incarnation: int = 0
    shard: int = 0
    address: str = ""
    first_clock: int = UNHEARD
    """Where the clock stood when the life began, moved back with it when an operator goes back: it may be
    negative, and what was counted stays counted."""
    clock: int = 0
    tokens: int = 0
    offered_clock: int = UNHEARD
    kept_steps: int = 0
    """Of lives that have ended."""
    past_steps: int = 0
    past_tokens: int = 0
    past_held_ns: int = 0
    past_wall_ns: int = 0
    offers: int = 0
    merged_offers: int = 0
    late: int = 0
    rejected: int = 0
    rejection: str = ""
    """Why its last offer was rejected, if none was merged since."""
    answered_t: int = -(1 << 60)
    merged_t: int = -(1 << 60)
    step_ns: deque[int] = field(default_factory=lambda: deque(maxlen=SAMPLES_KEPT))
    telemetry: wire.Telemetry | None = None

    @property
    def life_steps(self) -> int:
        """Steps of the current life."""
        return max(0, self.clock - self.first_clock) if self.first_clock != UNHEARD else 0

    @property
    def median_step_ns(self) -> int:
        """Of the newest steps."""
        return sorted(self.step_ns)[len(self.step_ns) // 2] if self.step_ns else 0

    def begin_life(self, incarnation: int) -> None:
        """A new incarnation: what the old one had not offered is lost."""
        if self.incarnation and incarnation != self.incarnation:
            offered = self.offered_clock - self.first_clock if self.offered_clock != UNHEARD else 0
            self.kept_steps += max(0, min(offered, self.life_steps))
            self.past_steps += self.life_steps
            self.past_tokens += self.tokens
            if self.telemetry is not None:
                self.past_held_ns += self.telemetry.held_ns
                self.past_wall_ns += self.telemetry.wall_ns
            self.first_clock = self.offered_clock = UNHEARD
            self.clock = self.tokens = 0
            self.telemetry = None
        self.incarnation = incarnation

    def reported(self, report: msg.Report) -> None:
        """A step, or several. A clock that is lower than before was put back: the steps go on from there."""
        if self.first_clock == UNHEARD:
            self.first_clock = report.clock
        if report.clock > self.clock and report.step_ns:
            self.step_ns.append(report.step_ns)
        back = self.clock - report.clock
        if back > 0:
            self.first_clock -= back
            self.offered_clock -= back if self.offered_clock != UNHEARD else 0
        self.clock, self.tokens = report.clock, report.tokens


@dataclass(eq=False)
class Books:
    """See the module. Loop's thread only."""

    config: RunConfig
    run: str
    began_ns: int
    num_params: int = 0
    learners: dict[str, LearnerBook] = field(default_factory=dict)
    notes: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=NOTES_KEPT))
    rounds_live: dict[int, int] = field(default_factory=dict)
    """Open rounds: fragment -> learners live when it opened."""
    num_places: int = 0
    """Rounds ended x learners live when they opened."""
    num_merged: int = 0
    body_bits: int = 0
    body_values: int = 0
    publish_bits: int = 0
    publish_values: int = 0
    finished_ns: int = 0
    problems: list[str] = field(default_factory=list)
    disk: DiskTrouble = field(default_factory=DiskTrouble)
    ticks: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=64))
    """(time, t, tokens), about one a second."""

    # What happened

    def admitted(self, session_name: str, incarnation: int, shard: int, address: str, now_ns: int) -> None:
        """A life begins, or comes back."""
        book = self.learners.setdefault(session_name, LearnerBook(session_name, now_ns))
        book.begin_life(incarnation)
        book.shard, book.address = shard, address

    def heard(self, message: wire.Message, t: int) -> None:
        """A learner said something that the machine has taken in."""
        book = self.learners.get(getattr(message, "name", ""))
        if book is None or getattr(message, "incarnation", 0) != book.incarnation:
            return
        if isinstance(message, msg.Report):
            book.reported(message)
        elif isinstance(message, msg.Header):
            book.offers += 1
            book.offered_clock = book.clock + 1
            book.answered_t = t
        elif isinstance(message, msg.Abstain):
            book.answered_t = t
        elif isinstance(message, wire.Telemetry):
            book.telemetry = _plausible(message)

    def commanded(self, command: do.Command, now_ns: int) -> None:
        """The machine decided something."""
        if isinstance(command, do.Note):
            self._noted(command, now_ns)
        elif isinstance(command, do.Opened):
            self.rounds_live[command.fragment] = command.num_live

    def _noted(self, note: do.Note, now_ns: int) -> None:
        if note.kind in SHOWN_NOTES:
            self.note(note.kind, note.who, note.reason, now_ns)
        if note.kind == "damage":
            self.problems.append(note.reason)
        elif note.kind == "cancelled":
            self.num_places += self.rounds_live.pop(note.fragment, 0)
        elif note.kind == "finished":
            self.finished_ns = now_ns
        elif note.kind == "dropped" and note.who in self.learners:
            book = self.learners[note.who]
            if note.reason.startswith("late"):
                book.late += 1
            elif not note.reason.startswith("stale"):
                book.rejected += 1
                if not book.rejection:
                    self.note("dropped", note.who, note.reason, now_ns)
                book.rejection = note.reason

    def note(self, kind: str, who: str, reason: str, now_ns: int) -> None:
        """Something a person may want to read."""
        at_s = round((now_ns - self.began_ns) / 1e9, 3)
        self.notes.append({"at_s": at_s, "kind": kind, "who": who, "reason": reason})

    def tried(self, what: What, reason: str, now_ns: int) -> None:
        """Something was written to the run directory, or refused for a reason."""
        if news := self.disk.tried(what, reason, now_ns):
            kind, sentence = news
            self.note(kind, "", sentence, now_ns)
            log.log(logging.WARNING if reason else logging.INFO, "%s", sentence)

    def committed(self, record: RoundRecord) -> None:
        """A merge is in the store."""
        self.num_places += self.rounds_live.pop(record.fragment, 0)
        self.num_merged += len(record.contributors)
        for part in record.contributors:
            book = self.learners.get(part.name)
            if book is not None:
                book.merged_offers += 1
                book.merged_t = record.t
                book.rejection = ""

    # The status

    def status(self, machine: SyncerMachine | None, now_ns: int, traffic: tuple[int, int]) -> dict[str, Any]:
        """Everything, as plain JSON values."""
        sync, budget = self.config.sync, self.config.budget
        t = machine.desk.schedule.t if machine is not None else 0
        stored = machine.desk.state if machine is not None else None
        details = [self._detail(book, machine, t, now_ns) for _, book in sorted(self.learners.items())]
        tokens = sum(book.past_tokens + book.tokens for book in self.learners.values())
        if not self.ticks or now_ns - self.ticks[-1][0] >= 500_000_000:
            self.ticks.append((now_ns, t, tokens))
        progress = self._progress(t, stored.merged_tokens if stored else 0)
        live = [d for d in details if d["state"] in ("training", "healing", "quarantined", "finished")]
        return {
            "run": self.run,
            "algorithm": sync.algorithm,
            "state": self._state(machine),
            "epoch": stored.epoch if stored else 0,
            "t": t,
            "budget_ticks": budget.ticks,
            "budget_tokens": budget.tokens,
            "progress": progress,
            "merges": stored.merges if stored else 0,
            "merged_tokens": (stored.merged_tokens if stored else 0) // sync.num_fragments,
            "tokens": tokens,
            "learner_steps": sum(book.past_steps + book.life_steps for book in self.learners.values()),
            "learners": len(self.learners),
            "alive": len(live),
            "participating": sum(1 for d in live if t - d.pop("answered_t") <= sync.interval_steps),
            "merged": sum(1 for d in live if t - d.pop("merged_t") <= sync.interval_steps),
            "goodput": self._goodput(now_ns),
            "participation": self.num_merged / self.num_places if self.num_places else None,
            "stall_fraction": self._stall(),
            "bytes_up": traffic[0],
            "bytes_down": traffic[1],
            "bits_per_param": {
                "up": self.body_bits / self.body_values if self.body_values else None,
                "down": self.publish_bits / self.publish_values if self.publish_values else None,
            },
            "params": self.num_params,
            "fragments": sync.num_fragments,
            "interval_steps": sync.interval_steps,
            "quorum": sync.min_quorum,
            "tokens_per_s": self._pace(2, now_ns),
            "loss": _weighted_loss(details),
            "eta_s": self._eta_s(progress, now_ns),
            "durability": {
                "mode": self.config.durability.mode,
                "crash_cost": CRASH_COST[self.config.durability.mode],
            },
            "problems": [*self.disk.problems(now_ns), *self.problems, *self._rejections()],
            "uptime_s": (now_ns - self.began_ns) / 1e9,
            "learner_details": [_without_ticks(d) for d in details],
            "notes": list(self.notes),
        }

    def _rejections(self) -> list[str]:
        books = [book for _, book in sorted(self.learners.items()) if book.rejection]
        return [f"offers of {book.name} are rejected: {book.rejection}" for book in books]

    def _state(self, machine: SyncerMachine | None) -> str:
        if machine is None or not machine.is_active:
            return "waiting"
        if machine.desk.state.finished:
            return "finished"
        if self.disk.is_blocked:
            return "blocked"
        if not machine.desk.state.fragments:
            return "seeding" if machine.desk.sessions else "waiting"
        return "draining" if machine.drain_reason else "training"

    def _progress(self, t: int, merged_tokens: int) -> float:
        return 1.0 if self.finished_ns else self.config.progress(t, merged_tokens)

    def _detail(
        self, book: LearnerBook, machine: SyncerMachine | None, t: int, now_ns: int
    ) -> dict[str, Any]:
        session = machine.desk.sessions.get(book.name) if machine is not None else None
        heard = book.telemetry
        shift = machine.desk.schedule.shifts.get(book.name, 0) if machine is not None else 0
        wall_ns = book.past_wall_ns + (heard.wall_ns if heard else 0)
        held_ns = book.past_held_ns + (heard.held_ns if heard else 0)
        return {
            "name": book.name,
            "state": self._learner_state(session, machine, now_ns),
            "incarnation": book.incarnation,
            "lag_steps": max(0, t - (book.clock + shift)),
            "clock": book.clock,
            "steps": book.past_steps + book.life_steps,
            "tokens": book.past_tokens + book.tokens,
            "tokens_per_s": heard.tokens_per_s if heard else None,
            "loss": heard.loss if heard else None,
            "step_ms": book.median_step_ns / 1e6 if book.step_ns else None,
            "held_ms": heard.held_ns / heard.step / 1e6 if heard and heard.step else None,
            "held_max_ms": heard.held_max_ns / 1e6 if heard else None,
            "held_total_ms": held_ns / 1e6,
            "cpu_ms": heard.cpu_ns / heard.step / 1e6 if heard and heard.step else None,
            "cpu_total_ms": heard.cpu_ns / 1e6 if heard else 0.0,
            "stall": held_ns / wall_ns if wall_ns else None,
            "offers": book.offers,
            "merged_offers": book.merged_offers,
            "late": book.late,
            "rejected": book.rejected,
            "strikes": machine.strikes.counts.get(book.name, 0) if machine is not None else 0,
            "moments": session.moments if session is not None else "",
            "shard": book.shard,
            "address": book.address,
            "device": heard.device if heard else None,
            "heard_s_ago": (now_ns - session.heard_ns) / 1e9 if session else None,
            "note": heard.note if heard else "",
            "answered_t": book.answered_t,
            "merged_t": book.merged_t,
        }

    def _learner_state(self, session: Session | None, machine: SyncerMachine | None, now_ns: int) -> str:
        if session is None or machine is None:
            return "joining" if machine is not None and not machine.desk.state.fragments else "lost"
        if session.left:
            return "left"
        if not session.is_connected(now_ns, machine.params.alive_ns):
            return "lost"
        if session.name in machine.strikes.until_ns:
            return "quarantined"
        if not session.healed:
            return "healing"
        return "finished" if machine.desk.state.finished else "training"

    def _goodput(self, now_ns: int) -> float | None:
        end_ns = self.finished_ns or now_ns
        useful = total = 0.0
        for book in self.learners.values():
            useful += (book.kept_steps + book.life_steps) * book.median_step_ns
            total += max(0, end_ns - book.admitted_ns)
        return min(1.0, useful / total) if total else None

    def _stall(self) -> float | None:
        held = wall = 0
        for book in self.learners.values():
            held += book.past_held_ns + (book.telemetry.held_ns if book.telemetry else 0)
            wall += book.past_wall_ns + (book.telemetry.wall_ns if book.telemetry else 0)
        return held / wall if wall else None

    def _pace(self, column: int, now_ns: int) -> float:
        """Per second, over the last ten seconds."""
        recent = [row for row in self.ticks if now_ns - row[0] <= 10_000_000_000]
        if len(recent) < 2 or recent[-1][0] == recent[0][0]:
            return 0.0
        return (recent[-1][column] - recent[0][column]) / ((recent[-1][0] - recent[0][0]) / 1e9)

    def _eta_s(self, progress: float, now_ns: int) -> float | None:
        first = self.ticks[0] if self.ticks else None
        budget = self.config.budget.ticks
        if not budget or first is None or progress >= 1.0:
            return 0.0 if progress >= 1.0 else None
        pace = self._pace(1, now_ns)
        return (budget - self.ticks[-1][1]) / pace if pace > 0 else None


def _plausible(heard: wire.Telemetry) -> wire.Telemetry:
    """Telemetry is for people and is not checked by the machine: what cannot be is left out."""
    counts = {name: max(0, getattr(heard, name)) for name in _COUNTS}
    loss = heard.loss if heard.loss is not None and abs(heard.loss) <= LARGEST else None
    pace = heard.tokens_per_s if 0.0 <= heard.tokens_per_s <= LARGEST else 0.0
    return replace(heard, loss=loss, tokens_per_s=pace, **counts)


_COUNTS = (
    "step",
    "tokens",
    "held_ns",
    "step_ns",
    "held_max_ns",
    "cpu_ns",
    "wall_ns",
    "overwritten",
    "offered",
    "memory_bytes",
)


def _without_ticks(detail: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in detail.items() if key not in ("answered_t", "merged_t")}


def _weighted_loss(details: list[dict[str, Any]]) -> float | None:
    rows = [
        (d["loss"], d["tokens_per_s"] or 1.0)
        for d in details
        if d["loss"] is not None and d["state"] == "training"
    ]
    total = sum(weight for _, weight in rows)
    return sum(loss * weight for loss, weight in rows) / total if total else None
