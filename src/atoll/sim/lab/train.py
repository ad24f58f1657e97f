"""Run one cell: the same cell gives the same row, bit for bit, but for the times it took.

Data-Parallel is a plain loop over the whole batch. Everything else is a world in virtual time (`world`). The
merged model is scored on all held-out data at the end, and on a part of it now and then on the way.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import Any

import torch
from torch import Tensor

from atoll.numerics.local import LocalModel
from atoll.numerics.outer import digest
from atoll.recipes import networks
from atoll.recipes.learning import schedule
from atoll.sim.lab.cell import PYTHON, Cell, Row
from atoll.sim.lab.crew import Crew, score
from atoll.sim.lab.data import Examples, data_of
from atoll.sim.lab.fleets import Schedule, elastic_steps, schedule_of, tokens_per_example
from atoll.sim.lab.models import Work, manifest_of, optimizer_of
from atoll.sim.lab.sizes import shape_of
from atoll.sim.lab.world import LabWorld, scenario_of

__all__ = ["run_cell"]

CURVE_POINTS = 8
CURVE_EXAMPLES = 128
AVERAGE_STEPS = 24
"""As often as a fragment is merged at the usual H."""

OnProgress = Callable[[float], None]


def run_cell(cell: Cell, on_progress: OnProgress | None = None) -> Row:
    """Train a cell and say what came of it; `on_progress` is told the share that is done."""
    torch.set_num_threads(1)
    cell = cell.plain()
    began, began_cpu = time.perf_counter(), time.process_time()
    bench = _Bench(cell, on_progress or (lambda share: None))
    is_lock_step = cell.method in ("data-parallel", "elastic")
    figures = bench.in_lock_step() if is_lock_step else bench.in_virtual_time()
    loss, accuracy = score(bench.final, bench.heldout)
    return Row(
        cell=cell,
        parameters=sum(parameter.numel() for parameter in bench.final.parameters()),
        heldout_loss=loss,
        accuracy=accuracy,
        curve=(*bench.curve, (1.0, score(bench.final, bench.heldout, CURVE_EXAMPLES)[0])),
        tokens=bench.work.done,
        steps=bench.work.steps,
        digest=digest(torch.cat([p.detach().reshape(-1) for p in bench.final.parameters()])),
        wall_s=time.perf_counter() - began,
        cpu_s=time.process_time() - began_cpu,
        python=PYTHON,
        torch=torch.__version__,
        **figures,
    )


def _initial(cell: Cell) -> networks.Network:
    """The network with the weights that the seed gives, whatever torch's global state."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(cell.seed)
        return networks.build(cell.task, shape_of(cell.task, cell.size))


@dataclass(slots=True)
class _Bench:
    """A cell on its way."""

    cell: Cell
    on_progress: OnProgress
    final: networks.Network = field(init=False)
    """Holds the merged model whenever it is scored."""
    heldout: Examples = field(init=False)
    work: Work = field(init=False)
    crew: Crew = field(init=False)
    schedule: Schedule = field(init=False)
    curve: list[tuple[float, float]] = field(default_factory=list)
    show: Callable[[], None] = field(default=lambda: None)
    """Puts the merged model of this moment into `final`."""

    def __post_init__(self) -> None:
        self.final = _initial(self.cell)
        self.work = Work(self.cell.tokens, self._watch)
        self.schedule = schedule_of(self.cell)

    def _watch(self, share: float) -> None:
        self.on_progress(share)
        if share * CURVE_POINTS >= len(self.curve) + 1 and share < 1:
            self.show()
            self.curve.append((round(share, 4), score(self.final, self.heldout, CURVE_EXAMPLES)[0]))

    # Data-Parallel

    def in_lock_step(self) -> dict[str, Any]:
        """One model, the whole batch; with fewer chips a smaller one."""
        cell, work = self.cell, self.work
        (stream,), self.heldout = data_of(cell)
        self.crew = Crew(lambda: _initial(cell), 1)
        model = self.final = self.crew.models[0]
        optimizer = optimizer_of(cell, model)
        mean = _Mean(cell)
        each, virtual_s, longest_s = tokens_per_example(cell), 0.0, 0.0
        steps = elastic_steps(cell) if cell.method == "elastic" else repeat((cell.fleet.step_s, 1.0))
        for step_s, share in steps:
            count = max(1, round(cell.batch * share))
            self.crew.prepare(0, stream.take(count))
            self.crew.gradients(0)
            for group in optimizer.param_groups:
                group["lr"] = cell.learning_rate * schedule(work.progress)
            optimizer.step()
            virtual_s, longest_s = virtual_s + step_s, max(longest_s, step_s)
            work.add(count * each)
            mean.take(model, work)
            if work.is_done:
                break
        mean.give(model)
        full = cell.batch * each / cell.fleet.step_s * virtual_s
        return {
            **_lock_step_figures(),
            "goodput": work.done / full,
            "model_goodput": self.schedule.model_goodput(virtual_s) if cell.method == "elastic" else 1.0,
            "virtual_s": virtual_s,
            "longest_stop_s": longest_s - cell.fleet.step_s,
        }

    # Everything else

    def in_virtual_time(self) -> dict[str, Any]:
        """One world, or two if the interval changes on the way."""
        cell = self.cell
        streams, self.heldout = data_of(cell)
        self.crew = Crew(lambda: _initial(cell), len(streams))
        world = None
        for settings, share in _phases(cell):
            self.work.limit = round(cell.tokens * share)
            manifest = manifest_of(settings, self.final, settings.num_fragments)
            world = LabWorld(
                scenario_of(settings, self.schedule),
                cell=settings,
                crew=self.crew,
                streams=streams,
                manifest=manifest,
                work=self.work,
                schedule=self.schedule,
                before=world,
            )
            self._run(world)
        assert world is not None
        return world.figures()

    def _run(self, world: LabWorld) -> None:
        local = LocalModel(self.final, world.manifest)

        def show() -> None:
            for p in range(len(world.model.model.states)):  # none before version 0
                local.scatter(p, world.model.values(p))

        self.show, self.work.on_limit = show, world.finish
        world.run()
        assert world.is_done(), "the schedule ended before the work was done"
        show()


@dataclass(slots=True)
class _Mean:
    """The mean of Data-Parallel's values over the last share of a run, one of every `AVERAGE_STEPS` steps."""

    cell: Cell
    count: int = 0
    sums: list[Tensor] = field(default_factory=list)

    def take(self, model: networks.Network, work: Work) -> None:
        """After a step."""
        share = self.cell.ideas.average_last
        if not share or work.progress < 1 - share or work.steps % AVERAGE_STEPS:
            return
        values = [parameter.detach().double() for parameter in model.parameters()]
        self.sums = [old + new for old, new in zip(self.sums, values, strict=True)] if self.sums else values
        self.count += 1

    def give(self, model: networks.Network) -> None:
        """At the end: the mean, if there is one, becomes the model."""
        with torch.no_grad():
            for parameter, total in zip(model.parameters(), self.sums, strict=False):
                parameter.copy_(total / self.count)


def _phases(cell: Cell) -> list[tuple[Cell, float]]:
    """Settings, and the share of the tokens up to which they hold."""
    early = cell.ideas.early_interval
    if not early:
        return [(cell, 1.0)]
    first = replace(cell, interval_steps=early, num_fragments=min(cell.num_fragments, early))
    return [(first, cell.ideas.early_share), (cell, 1.0)]


def _lock_step_figures() -> dict[str, Any]:
    """What has no meaning without a syncer."""
    return {
        "merges": 0, "participation": 1.0, "participants": 1.0, "merged_share": 1.0, "stall_fraction": 0.0,
        "staleness_steps": 0.0, "bytes_up": 0, "bytes_down": 0, "incarnations": 1,
    }  # fmt: skip
