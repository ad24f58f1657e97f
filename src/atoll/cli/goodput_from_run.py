"""Constants from a real run of Atoll, for `atoll simulate goodput --from-run`.

A run tells how long a step takes, how long a learner that died is away, how soon its work counts again,
how long a round takes and how long the syncer is away. In a run every learner is one slice, so its tapes
say nothing about shrinking and growing: those stay the defaults, which is said with their values. What was
given on the command line goes before what was measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoll.sim.units import say_duration

if TYPE_CHECKING:
    from atoll.observe.run_times import RunTimes

__all__ = ["Taken", "from_run", "stayed", "take"]

_SAID = {"step": "step", "down": "shrink", "up": "grow", "return_mean": "return", "outage": "outage"}


@dataclass(frozen=True, slots=True)
class Taken:
    """One constant that was measured."""

    option: str
    seconds: float
    how: str
    count: int


def from_run(path: Path, given: Mapping[str, Any]) -> tuple[dict[str, Any], list[Taken], list[str]]:
    """What was given, completed with what a run measured; what was taken; what there is to say about it."""
    from atoll.observe.run_times import read_run_times

    return take(read_run_times(path), given)


def take(times: RunTimes, given: Mapping[str, Any]) -> tuple[dict[str, Any], list[Taken], list[str]]:
    """The same, of times that were read already."""
    taken = [one for one in _measured(times) if one.option not in given]
    if "syncer_mtbf" not in given:
        taken = [one for one in taken if one.option != "syncer_down"]
    completed = {**given, **{one.option: one.seconds for one in taken}}
    return completed, taken, [*_remarks(times, given), *_about_defaults(completed)]


def stayed(completed: Mapping[str, Any]) -> dict[str, float]:
    """The constants that were neither given nor measured, by option, in seconds."""
    from atoll.sim.fleet.model import Pauses

    usual = Pauses()
    values = {
        "step": usual.quantum_s,
        "down": usual.down_s,
        "up": usual.up_s,
        "return_mean": usual.returns.mean_s,
        "outage": usual.outage_s,
    }
    return {option: value for option, value in values.items() if option not in completed}


def _measured(times: RunTimes) -> list[Taken]:
    found = []
    if times.step_s is not None:
        found.append(Taken("step", times.step_s.mean_s, "a learner's median step", times.step_s.count))
    if times.restart_s is not None:
        away = times.restart_s.mean_s
        deaths = times.restart_s.count
        found.append(Taken("outage", away, "from a death to the next step", deaths))
        found.append(Taken("return_mean", away, "the same: a learner of a run is one slice", deaths))
    if times.syncer_restart_s is not None:
        merge = times.merge_s.mean_s if times.merge_s is not None else 0.0
        how = "from the syncer's death to the next merge"
        found.append(
            Taken("syncer_down", times.syncer_restart_s.mean_s + merge, how, times.syncer_restart_s.count)
        )
    return found


def _remarks(times: RunTimes, given: Mapping[str, Any]) -> list[str]:
    """In plain words: what the run could not tell."""
    said = [f"Measured in {times.run}: {times.learners} learners, {say_duration(times.wall_s)}."]
    if times.restart_s is None:
        said.append("Nobody died in this run and came back, so the outage and the return stay as they are.")
    if times.rejoin_s is not None:
        # Steps count from the return on: what is trained before the first merged offer is in that offer.
        until = say_duration(times.rejoin_s.mean_s)
        said.append(
            f"Who came back was merged again {until} after it was admitted; its steps meanwhile count, so "
            "that this is told and not simulated."
        )
    if times.merge_s is not None:
        said.append(
            f"A round took {say_duration(times.merge_s.mean_s)}: learners train on meanwhile, so that it is "
            "part of the syncer's absence only."
        )
    if times.syncer_restart_s is None:
        said.append("Its syncer never went away.")
    elif "syncer_mtbf" not in given:
        away = say_duration(times.syncer_restart_s.mean_s)
        said.append(f"Its syncer was away for {away} at a time: --syncer-mtbf takes that into account.")
    return said


def _about_defaults(completed: Mapping[str, Any]) -> Iterator[str]:
    """What was not measured, and how much hangs on it."""
    defaults = stayed(completed)
    if defaults:
        values = (f"{_SAID[option]} {say_duration(seconds)}" for option, seconds in defaults.items())
        yield f"Neither measured nor given, so the defaults, which are not of this run: {', '.join(values)}."
    is_elastic = completed.get("elastic") is not False and completed.get("elasticity") != "none"
    if is_elastic and ("down" in defaults or "up" in defaults):
        yield (
            "A run cannot tell the pauses to shrink and to grow, as a learner of Atoll is one slice, and "
            "they decide the answer for elastic learners: measure them and give --down and --up."
        )
