"""What Atoll costs a training loop: tokens/s under it, over the same loop without it.

    python benchmarks/overhead.py [--quick] [--json] [--record]

One process trains the `small` Gemma recipe on one core; the syncer has a process and the other core for
itself, a run directory on disk, TLS, and a quorum of one, so that every round of the schedule takes place.
Blocks of plain steps and blocks of steps under Atoll take turns, with the same model, optimizer and batches,
in an order that alternates; the ratio is taken turn by turn. A plain block leaves out `learner.step` and
nothing else: the learner stays joined, and its few messages when idle are in both.

    held        how long `learner.step` kept the loop, as a share of the median plain step
    own CPU     of the training thread, `learner.step` included
    other CPU   of all other threads of the process: encoding, decoding, messages, TLS
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from hardware import hardware, median_and_spread, write_record

from atoll import Learner, RunConfig, Syncer, join
from atoll.recipes import Batch, Recipe, Shard, load_recipe
from atoll.runtime.stopwatch import percentile

AIM_RATIO, AIM_HELD_MEDIAN, AIM_HELD_P99 = 0.98, 0.005, 0.02
LEARNER_CORE, SYNCER_CORE = 0, 1
SETTLE_S = 0.25
"""Between two blocks, so that the last round of one is not paid for by the next."""


@dataclass(slots=True)
class Block:
    """What one block of steps took."""

    seconds: float = 0.0
    tokens: int = 0
    own_cpu_s: float = 0.0
    other_cpu_s: float = 0.0
    held_ns: list[int] = field(default_factory=list)


class Training:
    """The user's loop."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.model = recipe.build_model()
        self.optimizer = recipe.build_optimizer(self.model)
        self.batches: Iterator[Batch] = recipe.batches(Shard(0, 1, 0))

    def block(self, steps: int, learner: Learner | None) -> Block:
        """Train, with or without Atoll."""
        found = Block()
        process_s, thread_s, begin = time.process_time(), time.thread_time(), time.perf_counter()
        for _ in range(steps):
            batch = next(self.batches)
            self.recipe.loss(self.model, batch).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            found.tokens += batch.tokens
            if learner is not None:
                entered = time.perf_counter_ns()
                learner.step(tokens=batch.tokens)
                found.held_ns.append(time.perf_counter_ns() - entered)
        found.seconds = time.perf_counter() - begin
        found.own_cpu_s = time.thread_time() - thread_s
        found.other_cpu_s = time.process_time() - process_s - found.own_cpu_s
        return found


@contextmanager
def syncer_elsewhere(recipe: Recipe, codec: str) -> Iterator[dict[str, str]]:
    """A syncer in a process and on a core of its own; gives its URL and token."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--size", recipe.size, "--codec", codec, "--serve", folder]
        with subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                yield json.loads(process.stdout.readline())
            finally:
                process.stdin.close()
                process.wait(30)


def serve(recipe: Recipe, codec: str, folder: str) -> None:
    """Be that process until the other side closes the pipe."""
    os.sched_setaffinity(0, {SYNCER_CORE})
    tables = {**recipe.tables, "codec": {"up": codec, "down": codec}}
    with Syncer(RunConfig.from_tables(tables), Path(folder) / "overhead") as syncer:
        print(json.dumps({"url": syncer.url, "token": syncer.token}), flush=True)
        sys.stdin.read()


def measure(recipe: Recipe, codec: str, steps: int, turns: int) -> dict[str, Any]:
    """Blocks in turns; everything about them as one object."""
    os.sched_setaffinity(0, {LEARNER_CORE})
    training = Training(recipe)
    blocks: dict[str, list[Block]] = {"plain": [], "atoll": []}
    with syncer_elsewhere(recipe, codec) as place:
        learner = join(place["url"], model=training.model, optimizer=training.optimizer, token=place["token"])
        who: dict[str, Learner | None] = {"plain": None, "atoll": learner}
        for turn in range(turns + 1):
            for name in sorted(who, reverse=bool(turn % 2)):
                found = training.block(steps, who[name])
                time.sleep(SETTLE_S)
                if turn:  # the first turn warms up
                    blocks[name].append(found)
        metrics = learner.metrics
        learner.leave()
    return {"hardware": hardware(), "codec": codec, "steps": steps} | summary(blocks, steps, metrics)


def summary(blocks: dict[str, list[Block]], steps: int, metrics: dict[str, float]) -> dict[str, Any]:
    """The figures of the table."""
    plain, atoll = blocks["plain"], blocks["atoll"]
    ratios = [p.seconds / a.seconds for p, a in zip(plain, atoll, strict=True)]
    step_s = median_and_spread([p.seconds / steps for p in plain])
    held = [ns / 1e9 for a in atoll for ns in a.held_ns]

    def share(at: float) -> float:
        return percentile([int(1e9 * s) for s in held], at) / 1e9 / step_s[0]

    return {
        "turns": len(plain),
        "tokens_per_s": {
            name: median_and_spread([b.tokens / b.seconds for b in found]) for name, found in blocks.items()
        },
        "ratio": median_and_spread(ratios),
        "plain_step_ms": step_s[0] * 1e3,
        "held": {"median": share(0.5), "p99": share(0.99), "max": max(held) / step_s[0]},
        "cpu_ms_per_step": {
            f"{whose} CPU ms/step {name}": median_and_spread(
                [1e3 * getattr(b, f"{whose}_cpu_s") / steps for b in found]
            )
            for whose in ("own", "other")
            for name, found in blocks.items()
        },
        "offers_per_step": metrics["offers"] / metrics["steps"],
        "adopted_per_step": metrics["adopted"] / metrics["steps"],
        "missed_boundaries": int(metrics["missed_boundaries"]),
        "steps_under_atoll": int(metrics["steps"]),
    }


def table_of(found: dict[str, Any]) -> str:
    """A report for people."""
    lines = [
        f"codec {found['codec']}; {found['turns']} turns of {found['steps']} steps plain and as many under "
        f"Atoll; a plain step takes {found['plain_step_ms']:.1f} ms",
        f"{'':24s} {'median':>9s}  (smallest .. largest of the turns)",
    ]

    def row(name: str, values: tuple[float, float, float], digits: int, aim: str = "") -> None:
        median, low, high = (f"{value:.{digits}f}" for value in values)
        lines.append(f"{name:24s} {median:>9s}  ({low} .. {high}){aim}")

    for name, values in found["tokens_per_s"].items():
        row(f"tokens/s {name}", values, 0)
    row("ratio atoll / plain", found["ratio"], 4, f"   aim {AIM_RATIO}")
    for name, values in found["cpu_ms_per_step"].items():
        row(name, values, 3)
    held = found["held"]
    lines += [
        f"held, median             {held['median']:9.3%}  of a step   aim {AIM_HELD_MEDIAN:.1%}",
        f"held, 99th percentile    {held['p99']:9.3%}  of a step   aim {AIM_HELD_P99:.0%}",
        f"held, longest            {held['max']:9.3%}  of a step",
        f"offers {found['offers_per_step']:.2f} and adoptions {found['adopted_per_step']:.2f} per step; "
        f"{found['missed_boundaries']} of {found['steps_under_atoll']} boundaries missed, and made up for",
    ]
    return "\n".join(lines)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    parser.add_argument("--record", action="store_true", help="keep the table in benchmarks/records/")
    parser.add_argument("--quick", action="store_true", help="tiny, 2 turns of 24: does it run, not how fast")
    parser.add_argument("--steps", type=int, default=96, help="steps of a block")
    parser.add_argument("--turns", type=int, default=15, help="blocks of each kind")
    parser.add_argument("--size", default="small", help="of the recipe")
    parser.add_argument("--codec", default=RunConfig().codec.up, help="both ways")
    parser.add_argument("--serve", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    recipe = load_recipe("gemma", "tiny" if options.quick else options.size)
    if options.serve:
        serve(recipe, options.codec, options.serve)
        return
    if not {LEARNER_CORE, SYNCER_CORE} <= os.sched_getaffinity(0):
        sys.exit(f"This needs cores {LEARNER_CORE} and {SYNCER_CORE}: one to train on, one for the syncer.")
    load = os.getloadavg()[0]
    steps, turns = (24, 2) if options.quick else (options.steps, options.turns)
    found = measure(recipe, options.codec, steps, turns)
    table = f"{recipe.describe()}\n{table_of(found)}"
    print(f"measured, load {load:.2f};", ", ".join(f"{k} {v}" for k, v in found["hardware"].items()))
    print(table)
    if options.record:
        print(f"kept in {write_record('Overhead of Atoll on a training loop', table, load)}")
    if options.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
