"""How soon a killed syncer is back, and whether anybody noticed: kill -9 at ten random moments of one run.

    python benchmarks/restart.py [--quick] [--json] [--record] [--seed 0] [--recipe gemma] [--learners 4]

`atoll train` runs a fleet of real processes on this machine and kills its syncer at seeded moments, 9 to 15 s
apart. How soon the next syncer listens and merges is read by `atoll train` from the files it writes. How fast
learners stepped is read from their own tapes, which hold every step with its time: all learners together,
while nobody merged (from the kill to the next merge) and in the calm seconds just before and after, in the
same run. The ratio is of the first to the mean of the other two; a fleet on two cores also has those cores to
itself while its syncer is dead, so that it may exceed 1.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from hardware import hardware, median_and_spread, write_record

from atoll.core.events import Stepped
from atoll.errors import AtollError
from atoll.runtime.reader import StatusClient, read_status
from atoll.runtime.tape_file import TapeFile

AIM_LISTENING_S, AIM_MERGE_S = 3.0, 5.0
FIRST_S, GAP_S = 12.0, (9.0, 15.0)
"""The first kill after training began, and the time from one to the next."""
CALM_S = 4.0
"""Before each kill and after each return; shorter than any gap."""
LONGEST_S = 600.0
PAUSE_S = 0.5
ENDLESS = 1_000_000


@dataclass(frozen=True, slots=True)
class Outage:
    """One kill. Times in seconds, rates in steps per second of all learners together."""

    killed_s: float
    listening_s: float
    merge_s: float
    before: float
    during: float
    after: float

    @property
    def ratio(self) -> float:
        """Of the rate without a syncer to the calm one."""
        return self.during / ((self.before + self.after) / 2)


def moments(kills: int, seed: int) -> list[float]:
    """When to kill, in seconds after training began."""
    source, at_s = random.Random(seed), FIRST_S
    found = []
    for _ in range(kills):
        found.append(round(at_s, 2))
        at_s += source.uniform(*GAP_S)
    return found


def run(run_dir: Path, options: argparse.Namespace, kills: list[float]) -> dict[str, Any]:
    """The whole run: its summary as JSON."""
    command = [sys.executable, "-m", "atoll", "train", options.recipe, "--json"]
    more = ["--learners", str(options.learners), "--steps", str(ENDLESS), "--run-dir", str(run_dir)]
    planned = [part for at_s in kills for part in ("--kill", f"syncer@{at_s}s")]
    with subprocess.Popen([*command, *more, *planned], stdout=subprocess.PIPE, text=True) as training:
        assert training.stdout is not None
        try:
            finish_after(run_dir, len(kills) + 1, training)
            return dict(json.loads(training.stdout.read().splitlines()[-1]))
        finally:
            training.terminate()


def finish_after(run_dir: Path, epoch: int, training: subprocess.Popen[str]) -> None:
    """Ask the run to end once its last syncer has merged, and everybody has trained on for a while."""
    deadline_s, merges = time.monotonic() + LONGEST_S, None
    while training.poll() is None:
        if time.monotonic() > deadline_s:
            sys.exit(f"The last kill was not over after {LONGEST_S:g} s.")
        time.sleep(PAUSE_S)
        try:
            status = read_status(run_dir)
            if status["epoch"] < epoch:
                continue
            if merges is None:
                merges = status["merges"]
            elif status["merges"] > merges:
                time.sleep(2 * CALM_S)
                admin = (run_dir / "tokens" / "admin.token").read_text().strip()
                with StatusClient((run_dir / "url").read_text().strip(), admin) as client:
                    client.finish("the benchmark is over")
                return
        except AtollError:
            continue  # not yet, or just killed


def steps_of(run_dir: Path) -> list[tuple[float, int]]:
    """Every step of every learner with its time, as `time.time()` has it."""
    shift_s = time.time() - time.monotonic()
    found = []
    for path in sorted((run_dir / "learners").glob("*/tape-*.db")):
        tape = TapeFile(path)
        for entry in tape.read():
            if isinstance(entry.item, Stepped):
                found.append((entry.at_ns / 1e9 + shift_s, entry.item.steps))
        tape.close()
    return sorted(found)


def outages(answer: dict[str, Any], run_dir: Path) -> list[Outage]:
    """What each kill did."""
    began_s = json.loads((run_dir / "fleet.json").read_text())["began_s"]
    steps = steps_of(run_dir)

    def rate(from_s: float, to_s: float) -> float:
        return sum(num for at_s, num in steps if from_s <= at_s < to_s) / (to_s - from_s)

    found = []
    for kill in answer["kills"]:
        if kill["listening_to_merge_s"] is None:
            sys.exit(f"{kill['event']}: the run ended before its syncer merged again.")
        listening_s, merge_s = kill["kill_to_listening_s"], kill["listening_to_merge_s"]
        killed_s = began_s + kill["killed_s"]
        back_s = killed_s + listening_s + merge_s
        rates = rate(killed_s - CALM_S, killed_s), rate(killed_s, back_s), rate(back_s, back_s + CALM_S)
        found.append(Outage(kill["killed_s"], listening_s, merge_s, *rates))
    return found


def table_of(found: list[Outage], answer: dict[str, Any]) -> str:
    """A markdown table for people."""
    lines = [
        "| killed at s | kill to listening s | listening to merge s "
        "| steps/s before | without a syncer | after | ratio |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {o.killed_s:.1f} | {o.listening_s:.2f} | {o.merge_s:.2f} | {o.before:.1f} | {o.during:.1f} "
        f"| {o.after:.1f} | {o.ratio:.2f} |"
        for o in found
    ]

    def told(name: str, values: list[float], aim: str) -> str:
        median, low, high = median_and_spread(values)
        return f"{name}: median {median:.2f}, from {low:.2f} to {high:.2f}{aim}"

    lines += [
        "",
        told("kill to listening, s", [o.listening_s for o in found], f"; aim {AIM_LISTENING_S:g}"),
        told("listening to merge, s", [o.merge_s for o in found], f"; aim {AIM_MERGE_S:g}"),
        told("steps/s without a syncer over calm ones", [o.ratio for o in found], ""),
        f"{len(found)} kills, {answer['merges']} merges, {answer['learner_steps']} learner steps, "
        f"held-out loss {answer['heldout_loss']['start']:.3f} to {answer['heldout_loss']['end']:.3f}, "
        f"{answer['violations']} violations of the invariants",
    ]
    return "\n".join(lines)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    parser.add_argument("--record", action="store_true", help="keep table and JSON in benchmarks/records/")
    parser.add_argument("--quick", action="store_true", help="two kills: does it run, not how fast")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--recipe", default="gemma")
    parser.add_argument("--learners", type=int, default=4)
    options = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "restart"
        answer = run(run_dir, options, moments(2 if options.quick else 10, options.seed))
        found = outages(answer, run_dir)
    table = table_of(found, answer)
    result = {
        "hardware": hardware(),
        "load": load,
        "recipe": options.recipe,
        "learners": options.learners,
        "seed": options.seed,
        "kills": [{name: getattr(o, name) for name in (*Outage.__slots__, "ratio")} for o in found],
        "violations": answer["violations"],
        "merges": answer["merges"],
    }
    print(f"measured, load {load:.2f};", ", ".join(f"{k} {v}" for k, v in hardware().items()))
    print(f"{options.recipe} tiny, {options.learners} learners, seed {options.seed}\n\n{table}")
    if options.record:
        path = write_record("A syncer that is killed again and again", table, load)
        path.with_suffix(".json").write_text(json.dumps(result, indent=2) + "\n")
        print(f"kept in {path}, and as JSON beside it")
    if options.json:
        print(json.dumps(result))
    if answer["violations"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
