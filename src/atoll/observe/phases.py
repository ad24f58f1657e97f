"""Before, during and after a kill: whether the others noticed.

Metrics samples hold counters that only grow while a learner lives: steps, and the milliseconds in
which `step()` held the loop and the CPU was used. A phase is the difference between its first and its
last sample, summed over the survivors: the learners that were there through all of it and were not
killed themselves meanwhile. `before` and `after` are at most `window_s` long and end where
another kill or return begins, so that they show calm. `during` lasts from the kill until the
victim has healed. Only samples taken count; nothing is interpolated. Steps are told at every boundary, the
milliseconds once a second: after an outage of the syncer the former may be back first. So the cost of a step
is that of the survivors whose milliseconds have moved, and unknown if nobody's have. Time is an argument.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

__all__ = ["WINDOW_S", "Kill", "kill_tables"]

Sample = Mapping[str, Any]
Counters = tuple[float, float, float]

WINDOW_S = 20.0
KEYS = ("steps", "held_total_ms", "cpu_total_ms")


@dataclass(frozen=True, slots=True)
class Kill:
    """One kill. `healed_s` is None if the victim never came back; `event` says it in words."""

    name: str
    killed_s: float
    healed_s: float | None
    event: str


def kill_tables(
    samples: Sequence[Sample], kills: Sequence[Kill], window_s: float = WINDOW_S
) -> list[dict[str, Any]]:
    """For each kill `{event, survivors, rows}`, a row per phase:

    `{phase, seconds, steps_per_s, held_ms, cpu_ms}`: steps per second of the survivors together, the
    others per step. A number that no two samples can tell is None. Without a return there is no `after`.
    """
    ordered = sorted(samples, key=lambda sample: float(sample["at_s"]))
    return [_table(ordered, kill, kills, window_s) for kill in kills]


def _table(samples: Sequence[Sample], kill: Kill, kills: Sequence[Kill], window_s: float) -> dict[str, Any]:
    spans = _spans(samples, kill, kills, window_s)
    start_s, end_s = min(span[0] for span in spans.values()), max(span[1] for span in spans.values())
    inside = [_counters(sample) for sample in _within(samples, start_s, end_s)]
    dead = {other.name for other in kills if _is_dead_within(other, start_s, end_s)}
    survivors = _survivors(inside, dead | {kill.name})
    rows = [_row(phase, _within(samples, *span), survivors) for phase, span in spans.items()]
    return {"event": kill.event, "survivors": survivors, "rows": rows}


def _spans(
    samples: Sequence[Sample], kill: Kill, kills: Sequence[Kill], window_s: float
) -> dict[str, tuple[float, float]]:
    """From and to of each phase, in seconds."""
    others = [time_s for other in kills if other is not kill for time_s in (other.killed_s, other.healed_s)]
    turns = [time_s for time_s in others if time_s is not None]
    began_s = max([kill.killed_s - window_s, *(turn for turn in turns if turn <= kill.killed_s)])
    spans = {"before": (max(began_s, _all_there_s(samples, kill)), kill.killed_s)}
    if kill.healed_s is None:
        last_s = float(samples[-1]["at_s"]) if samples else kill.killed_s
        return {**spans, "during": (kill.killed_s, max(kill.killed_s, last_s))}
    ended_s = min([kill.healed_s + window_s, *(turn for turn in turns if turn >= kill.healed_s)])
    return {**spans, "during": (kill.killed_s, kill.healed_s), "after": (kill.healed_s, ended_s)}


def _all_there_s(samples: Sequence[Sample], kill: Kill) -> float:
    """When everybody who was there at the kill had joined: a fleet that fills up is not calm."""
    before = [sample for sample in samples if sample["at_s"] <= kill.killed_s]
    if not before:
        return kill.killed_s
    needed = _counters(before[-1]).keys() - {kill.name}
    full = (float(sample["at_s"]) for sample in before if needed <= _counters(sample).keys())
    return next(full, kill.killed_s)


def _is_dead_within(kill: Kill, start_s: float, end_s: float) -> bool:
    return kill.killed_s <= end_s and (kill.healed_s is None or kill.healed_s >= start_s)


def _survivors(inside: Sequence[Mapping[str, Counters]], dead: set[str]) -> list[str]:
    """In every sample, not among the dead, and no counter of theirs ever began anew."""
    if not inside:
        return []
    names = [name for name in sorted(inside[0]) if name not in dead]
    return [name for name in names if all(name in found for found in inside) and _only_grows(inside, name)]


def _only_grows(inside: Sequence[Mapping[str, Counters]], name: str) -> bool:
    return all(old <= new for a, b in pairwise(inside) for old, new in zip(a[name], b[name], strict=True))


def _row(phase: str, samples: Sequence[Sample], survivors: Sequence[str]) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(("seconds", "steps_per_s", "held_ms", "cpu_ms"))
    row = {"phase": phase, **row, "seconds": 0.0}
    if len(samples) < 2 or not survivors:
        return row
    first, last = _counters(samples[0]), _counters(samples[-1])
    grown = [[after - before for before, after in zip(first[n], last[n], strict=True)] for n in survivors]
    seconds = float(samples[-1]["at_s"]) - float(samples[0]["at_s"])
    row["seconds"] = seconds
    if seconds > 0:
        row["steps_per_s"] = sum(steps for steps, _, _ in grown) / seconds
    told = [counters for counters in grown if any(counters[1:])]
    steps, held_ms, cpu_ms = (sum(counters[i] for counters in told) for i in range(len(KEYS)))
    if steps > 0:
        row |= {"held_ms": held_ms / steps, "cpu_ms": cpu_ms / steps}
    return row


def _within(samples: Sequence[Sample], start_s: float, end_s: float) -> list[Sample]:
    return [sample for sample in samples if start_s <= sample["at_s"] <= end_s]


def _counters(sample: Sample) -> dict[str, Counters]:
    """The counters of every learner that reported all of them."""
    found: dict[str, Counters] = {}
    for detail in sample.get("learner_details") or ():
        steps, held_ms, cpu_ms = (detail.get(key) for key in KEYS)
        if steps is not None and held_ms is not None and cpu_ms is not None:
            found[detail["name"]] = (steps, held_ms, cpu_ms)
    return found
