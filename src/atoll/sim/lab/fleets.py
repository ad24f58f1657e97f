"""What befalls the learners of a cell: who has how many chips when, and how long a step takes.

A calm fleet has all its chips all the time. One that fails is drawn from the fleet model with the cell's seed
(`even_fleet`): pauses to shrink and to grow, slices that return, a trace for every learner. The model lets
the step in flight finish before a learner shrinks, so its quantum is the cell's step. At 5 s, the step that
the model's constants were fitted with, a run of 3,000 steps lasts more than four hours. A learner with an
eighth of 1.2M chips fails about every 210 s, so such a run sees some 650 failures: the model says 89 % of it,
0.3 points more or less by luck. At 1 s it would see a fifth of them, and luck would weigh more. Elastic
Data-Parallel has the same chips as one island: all of them stand still whenever one fails.

Extra learners are there for the first half of the work and leave for good. The moment follows from the tokens
that all learners do in a second until then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from atoll.errors import ConfigError
from atoll.sim.fleet.model import Pauses, even_fleet
from atoll.sim.fleet.simulate import simulate
from atoll.sim.fleet.trace import CapacityTrace
from atoll.sim.lab.cell import Cell
from atoll.sim.lab.sizes import WINDOW
from atoll.sim.scale.figures import figures_of
from atoll.sim.scale.pace import Pace
from atoll.sim.scale.scenario import DARK_S

__all__ = [
    "DEATH_S", "FAILING_STEP_S", "Schedule", "elastic_steps", "learner_name", "schedule_of",
    "tokens_per_example",
]  # fmt: skip

FAILING_STEP_S = 5.0
"""The step of a fleet that fails: what the fleet model's pauses were fitted with."""
DEATH_S = 0.5
"""With `has_deaths`, a learner without chips for longer than this is dead; every pause is far longer."""
SPARE = 4.0
"""Schedules are drawn for so many times the time that the work takes without failures."""
LEAST_S = 600.0
"""And for this much more, so that a short run is not cut off by one outage."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """Who is there, with how many chips, how fast. Learners are in order of their names."""

    traces: Mapping[str, CapacityTrace]
    """Chips at work over time, as a share of all that the learner has."""
    chips: Mapping[str, float]
    """All chips of each learner: 1, since the islands of a cell are equal."""
    step_s: Mapping[str, float]
    """Each learner's time for a step, without jitter."""
    leaves_s: Mapping[str, float]
    """When a learner leaves for good, for those that do; its goodput is counted until then."""
    dark_s: float
    """Without chips for longer than this, a learner's process is dead."""
    until_s: float
    """The schedule is drawn to here; the work is done well before."""

    def model_goodput(self, until_s: float) -> float:
        """What the fleet model says of a run of so many seconds: chips at work / chips that are there."""
        whole = figures_of(self.traces, self.chips, until_s=until_s, dark_s=self.dark_s).goodput
        there = {name: min(1.0, self.leaves_s.get(name, until_s) / until_s) for name in self.traces}
        return whole * sum(self.chips.values()) / sum(self.chips[name] * there[name] for name in there)


def learner_name(number: int) -> str:
    """Names sort as numbers do."""
    return f"learner-{number:02d}"


def tokens_per_example(cell: Cell) -> int:
    """What one example of the batch counts for: a window of tokens, or one image."""
    return 1 if cell.task == "vision" else WINDOW


def schedule_of(cell: Cell) -> Schedule:
    """The virtual world that a cell asks for; the same for the same seed, and for `cell.plain()`.

    Data-Parallel, elastic or not, is one learner with all the chips.
    """
    cell = cell.plain()
    work_s = _work_s(cell)
    until_s = SPARE * work_s * _slowed(cell) + LEAST_S
    names = [learner_name(number) for number in range(cell.learners + cell.fleet.extra)]
    drawn = _drawn(cell, until_s) if cell.fleet.chips else {}
    leave_s = _leave_s(cell)
    leaves_s = dict.fromkeys(names[cell.learners :], leave_s)
    extra = {name: CapacityTrace((0.0, leave_s), (1.0, 0.0)) for name in leaves_s}
    calm = {name: CapacityTrace((0.0,), (1.0,)) for name in names}
    schedule = Schedule(
        traces={**calm, **extra, **drawn},
        chips=dict.fromkeys(names, 1.0),
        step_s={name: cell.fleet.step_s / speed for name, speed in zip(names, _speeds(cell), strict=True)},
        leaves_s=leaves_s,
        dark_s=DEATH_S if cell.fleet.has_deaths else DARK_S,
        until_s=until_s,
    )
    if schedule.model_goodput(until_s) * until_s < work_s:
        raise ConfigError(
            f"{cell.fleet.chips} chips that fail every {cell.fleet.mtbi_s:g} s are at work "
            f"{schedule.model_goodput(until_s):.0%} of the time.",
            f"They would not do the work in {SPARE:g} times the time that it takes without failures.",
            "Give fewer chips, more learners, or chips that fail more rarely.",
        )
    return schedule


def elastic_steps(cell: Cell) -> Iterator[tuple[float, float]]:
    """The steps of elastic Data-Parallel: for each the seconds it took, pauses and all, and its share of the
    full batch. It ends where the schedule does, long after the work is done."""
    schedule = schedule_of(cell)
    (name,) = schedule.traces
    pace = Pace.of(schedule.traces[name], schedule.chips[name], schedule.dark_s)
    step_ns, until_ns = int(1e9 * schedule.step_s[name]), int(1e9 * schedule.until_s)
    began_ns = now_ns = 0
    while now_ns < until_ns:
        stint = pace.work(now_ns, step_ns)
        now_ns = stint.back_ns or stint.end_ns
        if stint.back_ns:
            continue  # the site went out and its step is lost: the next one pays for the time
        yield (now_ns - began_ns) / 1e9, stint.share
        began_ns = now_ns


def _speeds(cell: Cell) -> tuple[float, ...]:
    num_learners = cell.learners + cell.fleet.extra
    speeds = cell.fleet.speeds[:num_learners]
    return speeds + (1.0,) * (num_learners - len(speeds))


def _slowed(cell: Cell) -> float:
    """How many times longer the work may take because all wait for the slowest; failures are drawn up to the
    end of the schedule, so theirs stays where it was."""
    if cell.method not in ("streaming", "diloco") or cell.fleet.chips:
        return 1.0
    return max(_speeds(cell)) / min(_speeds(cell))


def _tokens_per_s(cell: Cell, num_learners: int) -> float:
    """Of the first so many learners with all their chips."""
    share = cell.batch / cell.learners * tokens_per_example(cell)
    return share * sum(_speeds(cell)[:num_learners]) / cell.fleet.step_s


def _work_s(cell: Cell) -> float:
    """How long the learners that stay would take alone, without failures."""
    return cell.tokens / _tokens_per_s(cell, cell.learners)


def _leave_s(cell: Cell) -> float:
    """When half the tokens are trained, with the extra learners."""
    return cell.tokens / 2 / _tokens_per_s(cell, cell.learners + cell.fleet.extra)


def _drawn(cell: Cell, until_s: float) -> dict[str, CapacityTrace]:
    """Traces of a fleet that fails, as shares of each learner's chips."""
    fleet = even_fleet(
        cell.fleet.chips,
        cell.learners,
        mtbi_s=cell.fleet.mtbi_s,
        pauses=Pauses(quantum_s=cell.fleet.step_s),
    )
    result = simulate([fleet], horizon_s=until_s, repetitions=1, seed=cell.seed, trace=True)[0]
    traces = zip(fleet.islands, result.traces.values(), strict=True)
    return {
        learner_name(number): CapacityTrace(
            trace.times_s, tuple(min(1.0, value / island.chips) for value in trace.chips)
        )
        for number, (island, trace) in enumerate(traces)
    }
