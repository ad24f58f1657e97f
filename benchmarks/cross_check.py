"""Whether the lab tells the truth: the same setting through real processes, and in the lab's virtual time.

    python benchmarks/cross_check.py [--seeds 3] [--learners 4] [--speed 0.25] [--json] [--record]

The recipe `text` at `tiny` is what the lab trains: the same network, the same text, the same held-out
windows, and the same initial weights for the same seed. `atoll train` gets the settings of the lab's cell
(H, P, tau, K, grace, codecs, eta, mu and its schedule, adoption) as a config file, and ticks that make the
cell's tokens. Not the same are the order of the data and all timing: no two runs of real processes are alike.
So seeds are not paired: compared are the means, and their difference is held against the spread of the seeds.

A step of so small a model takes milliseconds, no longer than the machine's scheduler takes to give a process
its turn, and offers would come late for that reason alone. `--speed` makes every learner sleep for the rest
of a longer step, as if the model were larger. Participation and the merged share of the tokens are printed
for both sides.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from figures import markdown
from hardware import hardware, write_record

from atoll.recipes import load_recipe
from atoll.sim.lab.cell import Cell, Row
from atoll.sim.lab.experiments.common import Place
from atoll.sim.lab.paired import spread, student_t

RECIPE = "text"
LONGEST_S = 1800.0
QUICK_STEPS = 96


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What is compared of one run."""

    seed: int
    where: str
    """`processes` or `lab`."""
    loss: float
    """Held out, in nats per token, of the merged model."""
    tokens: int
    """Trained by all learners together."""
    merges: int
    participation: float
    participants: float
    merged_share: float
    wall_s: float
    violations: int = 0


@dataclass(frozen=True, slots=True)
class Agreement:
    """The difference of two means, in percent of the lab's, with its 95 % interval and the seeds' spread."""

    difference: float
    low: float
    high: float
    spread: float
    """Standard deviation of single seeds, both sides taken together, in percent."""

    @property
    def verdict(self) -> str:
        """In words."""
        if not math.isfinite(self.spread):
            return "not resolved: one seed has no spread"
        if self.low > 0 or self.high < 0:
            return "they differ by more than the seeds' spread explains"
        if abs(self.difference) <= self.spread:
            return "they agree: the difference is within the seeds' spread, and may be none"
        return "not resolved: the difference may be none, and is larger than the seeds' spread: more seeds"


def agreement(real: Sequence[float], lab: Sequence[float]) -> Agreement:
    """Two samples of n with a spread in common: Student's interval with 2 n - 2 degrees of freedom."""
    (real_mean, real_sd), (lab_mean, lab_sd) = spread(real), spread(lab)
    scale, count = 100 / lab_mean, len(real)
    difference = scale * (real_mean - lab_mean)
    if count < 2:
        return Agreement(difference, -math.inf, math.inf, math.nan)
    sd = scale * math.hypot(real_sd, lab_sd) / math.sqrt(2)
    half = student_t(2 * count - 2) * sd * math.sqrt(2 / count)
    return Agreement(difference, difference - half, difference + half, sd)


def cell_of(learners: int, seed: int) -> Cell:
    """The lab's cell by our defaults, at the batch and rate that the recipe has for a learner."""
    preset = load_recipe(RECIPE).preset
    place = Place("decoupled", learners, settings_of="defaults")
    batch = learners * preset.batch_size
    return place.cell("tiny", seed, batch=batch, learning_rate=preset.learning_rate)


def ticks_of(cell: Cell) -> int:
    """Steps of every learner that make the cell's tokens."""
    return cell.tokens // (cell.batch * load_recipe(RECIPE).preset.window)


def command_of(cell: Cell, steps: int, speed: float, run_dir: Path, config: Path) -> list[str]:
    """`atoll train` with the cell's settings, which stand in the config file."""
    speeds = ",".join([f"{speed:g}"] * cell.learners)
    return [
        sys.executable, "-m", "atoll", "train", RECIPE, "--json", "--run-dir", str(run_dir),
        "--size", cell.size, "--seed", str(cell.seed), "--learners", str(cell.learners),
        "--speeds", speeds, "--steps", str(steps), "--config", str(config),
    ]  # fmt: skip


def through_processes(cell: Cell, steps: int, speed: float) -> Outcome:
    """One run of a syncer and learners on this machine."""
    from atoll.sim.lab.world import config_of

    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "run.toml"
        config.write_text(config_of(cell).to_toml())
        command = command_of(cell, steps, speed, Path(folder) / "run", config)
        done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_S, check=False)
    if not done.stdout.strip():
        sys.exit(f"atoll train ended with {done.returncode}: {done.stderr[-2000:]}")
    return outcome_of_run(cell.seed, json.loads(done.stdout.splitlines()[-1]))


def outcome_of_run(seed: int, answer: dict[str, Any]) -> Outcome:
    """What `atoll train --json` says."""
    offers = sum(learner["merged_offers"] for learner in answer["learner_details"])
    return Outcome(
        seed=seed,
        where="processes",
        loss=answer["heldout_loss"]["end"],
        tokens=answer["tokens"],
        merges=answer["merges"],
        participation=answer["participation"],
        participants=offers / max(1, answer["merges"]),
        merged_share=answer["merged_tokens"] / max(1, answer["tokens"]),
        wall_s=answer["wall_s"],
        violations=answer["violations"],
    )


def outcome_of_row(row: Row) -> Outcome:
    """What the lab says."""
    return Outcome(
        seed=row.cell.seed,
        where="lab",
        loss=row.heldout_loss,
        tokens=row.tokens,
        merges=row.merges,
        participation=row.participation,
        participants=row.participants,
        merged_share=row.merged_share,
        wall_s=row.wall_s,
    )


def table_of(outcomes: Sequence[Outcome]) -> str:
    """A row per run, the means, and what follows from them."""
    titles = ["seed", "where", "held-out loss", "tokens", "merges", "participation", "participants per merge"]
    titles += ["merged share of the tokens", "wall s", "violations"]
    rows = [
        [
            one.seed, one.where, f"{one.loss:.4f}", f"{one.tokens:,}", one.merges, f"{one.participation:.3f}",
            f"{one.participants:.2f}", f"{one.merged_share:.3f}", f"{one.wall_s:.0f}", one.violations,
        ]
        for one in outcomes
    ]  # fmt: skip
    sides = {where: losses_of(outcomes, where) for where in ("processes", "lab")}
    lines = [markdown(titles, rows), ""]
    for where, losses in sides.items():
        mean, sd = spread(losses)
        around = f", standard deviation {sd:.4f} over {len(losses)} seeds" if len(losses) > 1 else ""
        lines.append(f"{where}: mean {mean:.4f}{around}")
    return "\n".join([*lines, told(agreement(sides["processes"], sides["lab"]))])


def told(found: Agreement) -> str:
    """A difference for people."""
    words = f"processes against the lab: {found.difference:+.2f} %"
    if math.isfinite(found.spread):
        words += (
            f" (95 % interval {found.low:+.2f} to {found.high:+.2f} %); seeds spread by {found.spread:.2f} %"
        )
    return f"{words}; {found.verdict}"


def losses_of(outcomes: Sequence[Outcome], where: str) -> list[float]:
    """Of one side."""
    return [one.loss for one in outcomes if one.where == where]


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3, help="seeds 1 to this, on both sides")
    parser.add_argument("--learners", type=int, default=4)
    parser.add_argument("--speed", type=float, default=0.25, help="of every real learner; 1: no sleeping")
    parser.add_argument("--quick", action="store_true", help="few steps: does it run, not what comes of it")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    parser.add_argument("--record", action="store_true", help="keep table and JSON in benchmarks/records/")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    print(f"measured, load {load:.2f};", ", ".join(f"{k} {v}" for k, v in hardware().items()))
    outcomes = run_all(options)
    table = table_of(outcomes)
    print(f"\n{RECIPE} tiny, {options.learners} learners, decoupled\n\n{table}")
    whole = {
        "hardware": hardware(),
        "load": load,
        "options": vars(options),
        "cell": cell_of(options.learners, 1).settings(),
        "outcomes": [asdict(one) for one in outcomes],
    }
    if options.record:
        path = write_record("The lab against real processes", table, load)
        path.with_suffix(".json").write_text(json.dumps(whole, indent=1) + "\n")
        print(f"kept in {path}, and as JSON beside it")
    if options.json:
        print(json.dumps(whole))
    if any(one.violations for one in outcomes):
        sys.exit(1)


def run_all(options: argparse.Namespace) -> list[Outcome]:
    """Both sides of every seed."""
    from atoll.sim.lab.train import run_cell

    found = []
    for seed in range(1, options.seeds + 1):
        cell = cell_of(options.learners, seed)
        if options.quick:
            cell = replace(cell, tokens=QUICK_STEPS * cell.tokens // ticks_of(cell))
        real = through_processes(cell, ticks_of(cell), options.speed)
        lab = outcome_of_row(run_cell(cell))
        print(f"seed {seed}: {real.loss:.4f} through processes, {lab.loss:.4f} in the lab", flush=True)
        found += [real, lab]
    return found


if __name__ == "__main__":
    main()
