"""What the parent of a fleet sees: the syncer's status, and beside it the deeds of the supervisor.

The syncer writes its status down once a second; here it is read, and its times are put on the clock of the
fleet, which goes on when the syncer is killed and begins to count anew. Each status leaves a sample of every
learner's counters, from which the tables of before, during and after a kill are made.

When a syncer is back is read from the files that it writes: its URL once it listens, a delta for each merge.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from atoll.observe.phases import Kill, kill_tables
from atoll.runtime.keeping import listening_s
from atoll.runtime.processes import SYNCER, Fleet

__all__ = ["Watch"]

MAX_SAMPLES = 20_000
MAX_NOTES = 50
DELTA = ".safetensors"
HEALED = ("training", "finished", "left")
COUNTERS = {"steps": "clock", "held_total_ms": "held_total_ms", "cpu_total_ms": "cpu_total_ms"}
"""Of a sample, and where a status has them. A learner's clock counts its steps and survives the syncer."""


@dataclass(slots=True)
class _Wound:
    """A kill on purpose, until the victim has healed."""

    name: str
    at_s: float
    when: str
    life: int
    """Incarnation of the learner, or epoch of the syncer, that was killed."""
    known_s: float
    """When it was last known how everybody stood. Nobody counts while the syncer is dead, so its outage is
    measured from there to the first word after it."""
    healed_s: float | None = None
    listening_s: float | None = None
    """Of a syncer: when its next life listened, and when that merged something."""
    merged_s: float | None = None


@dataclass(slots=True)
class _Counters:
    """Counters of one learner that only grow, whatever restarts."""

    incarnation: int = -1
    seen: list[float] = field(default_factory=lambda: [0.0] * len(COUNTERS))
    total: list[float] = field(default_factory=lambda: [0.0] * len(COUNTERS))

    def add(self, incarnation: int, values: list[float]) -> None:
        """Take in what is new since the last sample; a life that is new begins at nothing."""
        if incarnation != self.incarnation:
            self.incarnation, self.seen = incarnation, list(values)
        for index, value in enumerate(values):
            self.total[index] += max(0.0, value - self.seen[index])
        self.seen = values


@dataclass(eq=False)
class Watch:
    """Follows one fleet. `began_s` is `time.time()` of the beginning of its run."""

    fleet: Fleet
    unit: str
    began_s: float
    since_s: float = 0.0
    """A status older than this is of a fleet before this one, which has left it behind."""
    status: dict[str, Any] = field(default_factory=dict)
    """The newest, on the fleet's clock; empty before the first."""
    training_s: float | None = None
    """When the first learner began to train."""
    samples: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=MAX_SAMPLES))
    wounds: list[_Wound] = field(default_factory=list)
    _raw: bytes = b""
    _problems: list[str] = field(default_factory=list)
    _epoch: int = 0
    _uptime_s: float = 0.0
    _syncer_s: float | None = None
    """When this life of the syncer began."""
    _notes: list[dict[str, Any]] = field(default_factory=list)
    _past_notes: list[dict[str, Any]] = field(default_factory=list)
    _counters: dict[str, _Counters] = field(default_factory=dict)

    def look(self, now_s: float) -> bool:
        """Read the status; True if it is a new one. The supervisor's own news are taken in either way."""
        path = self.fleet.run_dir / "status.json"
        is_new = False
        try:
            raw, at_s = path.read_bytes(), path.stat().st_mtime - self.began_s
            if raw != self._raw and at_s >= self.since_s - self.began_s:
                self._take(json.loads(raw), at_s)
                self._raw, is_new = raw, True
        except (OSError, ValueError):
            pass
        for wound in self.wounds:
            self._follow(wound)
        if self.status:
            self._add_own_news(now_s - self.began_s)
        return is_new

    def trains(self, name: str) -> bool:
        """Whether a learner takes part in the run by now; with the syncer, whether anybody does."""
        details = self.status.get("learner_details") or ()
        names = [detail["name"] for detail in details if detail["state"] == "training"]
        return bool(names) if name == SYNCER else name in names

    def killed(self, name: str, when: str, now_s: float) -> None:
        """The supervisor has killed somebody on purpose."""
        at_s = now_s - self.began_s
        life = self._epoch if name == SYNCER else self._incarnations().get(name, 0)
        known_s = float(self.samples[-1]["at_s"]) if name == SYNCER and self.samples else at_s
        self.wounds.append(_Wound(name, at_s, when, life, known_s))

    def kills(self) -> list[dict[str, Any]]:
        """Before, during and after each kill, for the summary; of a syncer also how soon it was back."""
        kills = [Kill(w.name, w.known_s, w.healed_s, _told(w)) for w in self.wounds]
        tables = kill_tables(list(self.samples), kills)
        return [{**table, **_returned(w)} for table, w in zip(tables, self.wounds, strict=True)]

    # Inside

    def _take(self, status: dict[str, Any], at_s: float) -> None:
        uptime_s = status.get("uptime_s") or 0.0
        if self._syncer_s is None or uptime_s < self._uptime_s:  # another life of the syncer
            self._syncer_s = at_s - uptime_s
            self._past_notes = (self._past_notes + self._notes)[-MAX_NOTES:]
        self._uptime_s, self._epoch = uptime_s, status.get("epoch") or 0
        notes = status.get("notes") or ()
        self._notes = [{**note, "at_s": note["at_s"] + self._syncer_s} for note in notes]
        if self.training_s is None and status.get("state") == "training":
            self.training_s = at_s
        self.status = {**status, "unit": self.unit}
        self._problems = list(status.get("problems") or ())
        self._sample(at_s)
        for wound in self.wounds:
            if wound.healed_s is None and self._has_healed(wound):
                wound.healed_s = at_s

    def _follow(self, wound: _Wound) -> None:
        """Notice that a syncer which was killed listens again, and that it merges again."""
        if wound.name != SYNCER or wound.merged_s is not None:
            return
        run_dir, killed_s = self.fleet.run_dir, wound.at_s + self.began_s
        if wound.listening_s is None and (at_s := listening_s(run_dir)) > killed_s:
            wound.listening_s = at_s - self.began_s
        if wound.listening_s is not None:
            merged_s = _first_delta_s(run_dir / "deltas", wound.listening_s + self.began_s)
            wound.merged_s = None if merged_s is None else merged_s - self.began_s

    def _add_own_news(self, now_s: float) -> None:
        own = [
            {"at_s": event.at_s - self.began_s, "kind": event.kind, "who": event.who, "reason": event.reason}
            for event in self.fleet.events
        ]
        notes = sorted([*self._past_notes, *self._notes, *own], key=lambda note: float(note["at_s"]))
        self.status["notes"] = notes[-MAX_NOTES:]
        self.status["uptime_s"] = now_s
        is_down = self.fleet.children and not self.fleet.is_over and not self.fleet.is_served
        self.status["problems"] = ["the syncer is down; learners train on"] if is_down else self._problems

    def _sample(self, at_s: float) -> None:
        for detail in self.status.get("learner_details") or ():
            if detail.get("device") is None:
                continue  # not a word yet about the CPU and the time held
            counters = self._counters.setdefault(detail["name"], _Counters())
            values = [float(detail.get(key) or 0.0) for key in COUNTERS.values()]
            counters.add(detail["incarnation"], values)
        self.samples.append({"at_s": at_s, "learner_details": self._known()})

    def _known(self) -> list[dict[str, Any]]:
        """Everybody ever seen: a syncer that came back must first hear from them again."""
        return [
            {"name": name, **dict(zip(COUNTERS, counters.total, strict=True))}
            for name, counters in sorted(self._counters.items())
        ]

    def _has_healed(self, wound: _Wound) -> bool:
        if wound.name == SYNCER:
            details = self.status.get("learner_details") or ()
            heard = {detail["name"] for detail in details if detail["state"] in HEALED}
            return self._epoch > wound.life and heard >= self._counters.keys()
        return any(
            detail["incarnation"] > wound.life and detail["state"] in HEALED
            for detail in self.status.get("learner_details") or ()
            if detail["name"] == wound.name
        )

    def _incarnations(self) -> Mapping[str, int]:
        details = self.status.get("learner_details") or ()
        return {detail["name"]: detail["incarnation"] for detail in details}


def _first_delta_s(folder: Path, since_s: float) -> float | None:
    """When the first delta after this moment was written: the beginning of a commit."""
    try:
        times_s = [entry.stat().st_mtime for entry in os.scandir(folder) if entry.name.endswith(DELTA)]
    except OSError:  # one was deleted meanwhile; the others are still there the next time
        return None
    return min((time_s for time_s in times_s if time_s > since_s), default=None)


def _returned(wound: _Wound) -> dict[str, Any]:
    """Of a syncer's kill, in seconds; the first since the beginning of the run."""
    if wound.name != SYNCER:
        return {}
    listening = None if wound.listening_s is None else wound.listening_s - wound.at_s
    merge = (
        None if wound.merged_s is None or wound.listening_s is None else wound.merged_s - wound.listening_s
    )
    return {"killed_s": wound.at_s, "kill_to_listening_s": listening, "listening_to_merge_s": merge}


def _told(wound: _Wound) -> str:
    killed = f"{wound.name} killed at {wound.when}"
    if wound.name == SYNCER and wound.listening_s is not None:
        killed += f", listening after {wound.listening_s - wound.at_s:.1f} s"
        if wound.merged_s is not None:
            killed += f", next merge {wound.merged_s - wound.listening_s:.1f} s later"
        return killed
    return killed if wound.healed_s is None else f"{killed}, back after {wound.healed_s - wound.at_s:.0f} s"
