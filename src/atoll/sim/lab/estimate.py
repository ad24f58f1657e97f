"""How long an experiment will take, before it starts and while it runs.

A training step of a small network costs a fixed time for its operations and a time for each parameter and
token; the protocol costs each learner a little in every step. `cost_s` is that formula, in seconds of one
core, midway between two machines that differ by a factor of four at `tiny`. `Costs` scales it by what
finished rows really took: the median ratio of the same task, size and method, or of all rows where there are
none of that kind.

`plan` asks an experiment for all its cells without training any: kept rows are answered, and where there is
none a stand-in with a plausible loss. Where a later stage follows from earlier rows, its cells may be others
than those trained in the end; their number and cost are what is wanted.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Protocol

from atoll.sim.lab.cell import Cell, Method, Row, Size, Task
from atoll.sim.lab.report import Experiment, Report, Request, Stages
from atoll.sim.lab.sizes import NUM_PATCHES, WINDOW, shape_of

__all__ = ["Costs", "Finds", "Meter", "Plan", "cost_s", "plan", "plans", "walk"]

STEP_S = 2e-3
"""Operations of one step of all learners together, however small."""
TOKEN_S = 1.2e-10
"""Forward, backward and optimizer, for each parameter and token."""
PROTOCOL_S = 0.9e-3
"""Clock, snapshots, merges and adoption, for each step of a learner."""
NUM_BYTES = 256
"""Tokens of a text."""
FIRST_S = 20.0
"""Until about so much time has passed, the time left follows from the estimate; then from the pace."""

Kind = tuple[Task, Size, Method]


def cost_s(cell: Cell) -> float:
    """Seconds of one core that a cell takes, by the formula alone."""
    example = NUM_PATCHES if cell.task == "vision" else WINDOW
    steps = cell.tokens / (cell.batch * (1 if cell.task == "vision" else WINDOW))
    step_s = STEP_S + TOKEN_S * _parameters(cell) * cell.batch * example
    offering = 0 if cell.method in ("data-parallel", "elastic") else cell.learners
    return steps * (step_s + PROTOCOL_S * offering)


@dataclass(frozen=True, slots=True)
class Costs:
    """The formula, corrected by rows that are finished."""

    factors: Mapping[Kind, float] = field(default_factory=dict)
    factor: float = 1.0

    @classmethod
    def of(cls, rows: Iterable[Row]) -> Costs:
        """What these rows teach; a shelf has seen to it that they took a time."""
        ratios: dict[Kind, list[float]] = defaultdict(list)
        for row in rows:
            ratios[_kind(row.cell)].append(row.cpu_s / cost_s(row.cell))
        if not ratios:
            return cls()
        factors = {kind: median(found) for kind, found in ratios.items()}
        return cls(factors, median(ratio for found in ratios.values() for ratio in found))

    def cost_s(self, cell: Cell) -> float:
        """Seconds of one core that a cell takes."""
        return cost_s(cell) * self.factors.get(_kind(cell), self.factor)


@dataclass(frozen=True, slots=True)
class Plan:
    """What an experiment will ask for; a cell that it asks for twice counts once."""

    stages_s: tuple[tuple[float, ...], ...]
    """Seconds of one core for each cell that is to be trained, stage by stage."""
    kept: int
    """Cells whose rows are there already."""
    shared: int = 0
    """Cells that an experiment before it asks for too, and which are counted there."""

    @property
    def may_differ(self) -> bool:
        """Whether results decide what is asked for next, and it may be more or less than was foreseen."""
        return self.to_train > 0 and len(self.stages_s) > 1

    @property
    def to_train(self) -> int:
        """Cells that are to be trained."""
        return sum(len(stage) for stage in self.stages_s)

    @property
    def cells(self) -> int:
        """All of them."""
        return self.kept + self.shared + self.to_train

    @property
    def cost_s(self) -> float:
        """Seconds of one core that are still to be spent."""
        return sum(sum(stage) for stage in self.stages_s)

    def wall_s(self, jobs: int) -> float:
        """Seconds on `jobs` cores: longest cells first, and a stage begins when the one before has ended."""
        return sum(_span_s(stage, jobs) for stage in self.stages_s)


class Finds(Protocol):
    """What has rows of finished cells, such as a shelf."""

    def find(self, cell: Cell) -> Row | None:
        """The row of this cell, if there is one."""


def plan(experiment: Experiment, request: Request, shelf: Finds | None, costs: Costs | None = None) -> Plan:
    """What one experiment will ask for; without a shelf, as if nothing were kept."""
    return plans([experiment], request, shelf, costs)[0]


def plans(
    experiments: Sequence[Experiment], request: Request, shelf: Finds | None, costs: Costs | None = None
) -> list[Plan]:
    """The same for several, one after the other: what an earlier one asks for is there for the later ones."""
    costs = costs or Costs()
    rows: dict[str, Row] = {}
    return [_plan(experiment, request, shelf, costs, rows) for experiment in experiments]


def walk(stages: Stages, answer: Callable[[Sequence[Cell]], Sequence[Row]]) -> Report:
    """Answer every stage of an experiment, until it returns its report."""
    try:
        cells = next(stages)
        while True:
            cells = stages.send(answer(cells))
    except StopIteration as end:
        report: Report = end.value
        return report


@dataclass(eq=False)
class Meter:
    """How far a run is, and how long it will still take; a started cell counts by its share."""

    total_s: float
    """Seconds of one core in all, as planned; more once more was asked for."""
    jobs: int
    started_s: float
    """When: any clock."""
    costs: Costs = field(default_factory=Costs)
    _asked_s: dict[str, float] = field(default_factory=dict)
    _done_s: dict[str, float] = field(default_factory=dict)

    def asked(self, cell: Cell) -> None:
        """This cell will be trained: the work in all is no less than what was asked for by now."""
        self._asked_s[cell.key] = self.costs.cost_s(cell)
        self.total_s = max(self.total_s, sum(self._asked_s.values()))

    def reached(self, cell: Cell, share: float) -> None:
        """This share of a cell has been trained."""
        self._done_s[cell.key] = share * self.costs.cost_s(cell)

    @property
    def done_s(self) -> float:
        """Seconds of one core that are done, as estimated."""
        return sum(self._done_s.values())

    @property
    def share(self) -> float:
        """Of all work, between 0 and 1."""
        return min(1.0, self.done_s / self.total_s) if self.total_s > 0 else 1.0

    def left_s(self, now_s: float) -> float:
        """Seconds until the end, at the pace so far."""
        elapsed_s = max(0.0, now_s - self.started_s)
        pace = (FIRST_S * self.jobs + self.done_s) / (FIRST_S + elapsed_s)
        return max(0.0, self.total_s - self.done_s) / pace


def _plan(
    experiment: Experiment, request: Request, shelf: Finds | None, costs: Costs, rows: dict[str, Row]
) -> Plan:
    """`rows`, by key: what earlier experiments were answered; this one's answers are added."""
    earlier = frozenset(rows)
    stages_s: list[tuple[float, ...]] = []
    asked: set[str] = set()

    def answer(cells: Sequence[Cell]) -> list[Row]:
        stage_s: list[float] = []
        for cell in cells:
            key = cell.key
            asked.add(key)
            if key in rows:
                continue
            row = shelf.find(cell) if shelf else None
            if row is None:
                stage_s.append(costs.cost_s(cell))
            rows[key] = row or _stand_in(cell)
        stages_s.append(tuple(stage_s))
        return [replace(rows[cell.key], cell=cell) for cell in cells]

    walk(experiment.stages(request), answer)
    num_new = len(asked - earlier)
    return Plan(tuple(stages_s), num_new - sum(map(len, stages_s)), len(asked) - num_new)


def _span_s(stage_s: Sequence[float], jobs: int) -> float:
    """When the last of these jobs ends, if the longest are begun first."""
    free_at_s = [0.0] * jobs
    for one_s in sorted(stage_s, reverse=True):
        heapq.heapreplace(free_at_s, free_at_s[0] + one_s)
    return max(free_at_s)


def _kind(cell: Cell) -> Kind:
    return cell.task, cell.size, cell.method


def _parameters(cell: Cell) -> int:
    """About how many the network has: embeddings or patches, places, attention, MLP or experts."""
    shape = shape_of(cell.task, cell.size)
    width = shape["width"]
    mlp = 2 * shape["hidden"] * shape["experts"] if "experts" in shape else 8 * width
    ends = NUM_PATCHES if cell.task == "vision" else NUM_BYTES + WINDOW
    return width * (ends + shape["layers"] * (4 * width + mlp))


def _stand_in(cell: Cell) -> Row:
    """A row that nobody trained: a loss that falls with size and rises with learners, and a little luck."""
    parameters = _parameters(cell)
    learners = 0 if cell.method in ("data-parallel", "elastic") else cell.learners
    luck = int(cell.key[:4], 16) / 0xFFFF
    loss = (1.5 + 60 * parameters**-0.4) * (1 + 0.005 * learners + 0.004 * luck)
    return Row(
        cell=cell, parameters=parameters, heldout_loss=loss, accuracy=0.5,
        curve=((0.5, loss + 0.3), (1.0, loss)), tokens=cell.tokens, steps=1000, merges=1000,
        goodput=1.0, model_goodput=1.0, participation=1.0,
        participants=float(cell.learners), merged_share=0.9, stall_fraction=0.0, longest_stop_s=0.0,
        staleness_steps=2.0, virtual_s=1000.0, bytes_up=10**6, bytes_down=10**6, incarnations=cell.learners,
        digest="", wall_s=1.0, cpu_s=1.0,
    )  # fmt: skip
