"""What ten kills cost the model: the same tokens with and without them, seed by seed.

    python benchmarks/kills.py [--seeds 0 1 2] [--steps 600] [--kills 10] [--json] [--record]

`atoll train` runs a fleet of real processes on this machine, once undisturbed and once with kill -9 at
planned shares of the budget: eight times a learner, twice the syncer. A killed learner stays dead for six
seconds; the syncer is started again at once. The budget is in merged tokens, so that all runs learn from as
many, but for what the last rounds merge on top, which is printed. Compared: the held-out loss at the end, as
a paired difference per seed. The undisturbed run is done a second time: no two runs of real processes are the
same, and the difference of these two is what the other has to exceed to mean something.

For every life of a learner after its first: its own steps from its admission until an offer of its own was
merged, in units of H (healing comes before the first of them, so the ticks of the run are printed too), and
where its optimizer state came from.
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
from dataclasses import asdict
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from figures import Paired, markdown, paired
from hardware import hardware, median_and_spread, write_record
from returns import Return, plan, returns_of

from atoll.config import RunConfig
from atoll.recipes import Recipe, load_recipe
from atoll.runtime.processes import learner_names

AIM_PERCENT, AIM_CYCLES = 1.0, 1.5
LONGEST_S = 1200.0
ARMS = ("calm", "killed", "again")


def train(run_dir: Path, recipe: Recipe, options: argparse.Namespace, kills: Sequence[str]) -> dict[str, Any]:
    """One run: its summary as JSON."""
    preset = recipe.preset
    tokens = options.steps * options.learners * preset.batch_size * max(1, preset.window)
    command = [sys.executable, "-m", "atoll", "train", recipe.name, "--json", "--run-dir", str(run_dir)]
    command += ["--learners", str(options.learners), "--seed", str(recipe.seed)]
    command += ["--set", "budget.ticks=0", "--set", f"budget.tokens={tokens}"]
    command += [part for kill in kills for part in ("--kill", kill)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_S, check=False)
    if not done.stdout.strip():
        sys.exit(f"atoll train ended with {done.returncode}: {done.stderr[-2000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def pair(recipe: Recipe, options: argparse.Namespace) -> dict[str, Any]:
    """A run without kills, one with them, and one without again."""
    kills = plan(options.kills, learner_names(options.learners), recipe.seed)
    with tempfile.TemporaryDirectory() as folder:
        calm = train(Path(folder) / "calm", recipe, options, [])
        killed = train(Path(folder) / "killed", recipe, options, kills)
        again = train(Path(folder) / "again", recipe, options, [])
        returns = returns_of(Path(folder) / "killed")
    return {
        "seed": recipe.seed,
        "planned": kills,
        "kills": [kill["event"] for kill in killed["kills"]],
        "returns": returns,
        **{f"calm_{key}": value for key, value in figures_of(calm).items()},
        **{f"killed_{key}": value for key, value in figures_of(killed).items()},
        **{f"again_{key}": value for key, value in figures_of(again).items()},
    }


def figures_of(answer: dict[str, Any]) -> dict[str, Any]:
    """What is kept of a run."""
    kept = ("merged_tokens", "merges", "learner_steps", "goodput", "participation", "violations", "wall_s")
    return {"loss": answer["heldout_loss"]["end"], **{key: answer[key] for key in kept}}


def losses_table(pairs: Sequence[dict[str, Any]]) -> str:
    """A row per seed, and what follows from all of them. The second run without kills is the noise."""
    titles = ["seed", "kills", "loss without", "with kills", "difference", "without, again", "difference"]
    rows = []
    for one in pairs:
        row = [one["seed"], len(one["kills"]), f"{one['calm_loss']:.4f}"]
        for other in ("killed_loss", "again_loss"):
            row += [f"{one[other]:.4f}", f"{100 * (one[other] / one['calm_loss'] - 1):+.2f} %"]
        row += [" / ".join(f"{one[f'{arm}_merged_tokens']:,}" for arm in ARMS)]
        rows.append([*row, " / ".join(str(one[f"{arm}_violations"]) for arm in ARMS)])
    table = markdown([*titles, "merged tokens of the three", "violations"], rows)
    calm = [one["calm_loss"] for one in pairs]
    kills = told(paired([one["killed_loss"] for one in pairs], calm))
    noise = told(paired([one["again_loss"] for one in pairs], calm))
    verdict = paired([one["killed_loss"] for one in pairs], calm).within(AIM_PERCENT)
    return (
        f"{table}\n\nkills change the held-out loss by {kills}; aim {AIM_PERCENT:g} %: {verdict}\n"
        f"doing the same again without kills changes it by {noise}"
    )


def told(found: Paired) -> str:
    """A paired difference for people."""
    if math.isinf(found.high):
        return f"{found.mean:+.2f} % (one pair: no interval)"
    return f"{found.mean:+.2f} % (95 % interval {found.low:+.2f} to {found.high:+.2f} %)"


def returns_table(pairs: Sequence[dict[str, Any]], interval: int) -> str:
    """A row per return, and what follows from all of them."""
    titles = ["seed", "learner", "life", "own steps / H", "ticks of the run / H", "optimizer state"]
    lives: list[tuple[int, Return]] = [(one["seed"], life) for one in pairs for life in one["returns"]]
    rows = []
    for seed, life in lives:
        took = [cycles(life.steps, interval), cycles(life.ticks, interval)]
        rows.append([seed, life.name, life.incarnation, *took, f"{life.moments}: {life.reason}"])
    steps = [life.steps / interval for _, life in lives if life.steps is not None]
    own = sum(life.is_own for _, life in lives)
    words = "nobody came back"
    if steps:
        median, low, high = median_and_spread(steps)
        late = sum(value > AIM_CYCLES for value in steps)
        words = (
            f"own steps until an offer was merged, in units of H = {interval}: median {median:.2f}, "
            f"from {low:.2f} to {high:.2f}; aim {AIM_CYCLES:g}: {late} of {len(steps)} took longer; "
            f"{len(lives) - len(steps)} lives ended before; "
            f"all optimizer state from the own disk: {own} of {len(lives)}"
        )
    num_killed = sum(not kill.startswith("syncer") for one in pairs for kill in one["kills"])
    came = f"{len(lives)} lives after {num_killed} kills of learners; who is missing was dead at the end"
    return f"{markdown(titles, rows)}\n\n{came}\n{words}"


def cycles(steps: int | None, interval: int) -> str:
    """Steps in units of H."""
    return "none merged" if steps is None else f"{steps / interval:.2f}"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument(
        "--steps", type=int, default=600, help="budget: the tokens of so many steps of every learner"
    )
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--recipe", default="gemma")
    parser.add_argument("--learners", type=int, default=4)
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    parser.add_argument("--record", action="store_true", help="keep table and JSON in benchmarks/records/")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    print(f"measured, load {load:.2f};", ", ".join(f"{k} {v}" for k, v in hardware().items()))
    pairs = []
    for seed in options.seeds:
        recipe = load_recipe(options.recipe, "tiny", seed=seed)
        pairs.append(one := pair(recipe, options))
        print(f"seed {seed}: {one['calm_loss']:.4f} without, {one['killed_loss']:.4f} with kills", flush=True)
    interval = RunConfig.from_tables(recipe.tables).sync.interval_steps
    tables = f"{losses_table(pairs)}\n\n{returns_table(pairs, interval)}"
    print(f"\n{options.recipe} tiny, {options.learners} learners\n\n{tables}")
    for one in pairs:
        one["returns"] = [asdict(life) for life in one["returns"]]
    whole = {"hardware": hardware(), "load": load, "options": vars(options), "pairs": pairs}
    if options.record:
        path = write_record("Ten kills against none, at the same tokens", tables, load)
        path.with_suffix(".json").write_text(json.dumps(whole, indent=1) + "\n")
        print(f"kept in {path}, and as JSON beside it")
    if options.json:
        print(json.dumps(whole))
    if any(one[f"{arm}_violations"] for one in pairs for arm in ARMS):
        sys.exit(1)


if __name__ == "__main__":
    main()
