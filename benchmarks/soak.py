"""Whether anything grows without bound: 10,000 merges of a tiny model, memory and disk measured on the way.

    python benchmarks/soak.py [--merges 10000] [--keep-mb 1 64] [--pace-ms 20] [--json] [--record]

One syncer with a run directory and two learners, each a process of its own, settings as they are by default
but for `tape.keep_mb`, the quorum (both) and the number of fragments: as many as steps between their rounds,
so one merge a step, at a pace that the disk and two cores keep up with. Every 1/20 of the way: resident
memory and open files of the syncer and of a learner, bytes of the run directory by kind. A line through the
second half of the samples says what grows, per 1,000 merges. At the end `atoll replay` and `atoll fsck` must
find the run whole.

With `tape.keep_mb` 1 tapes are cut on the way; with the default 64 such a run is too short for that, and what
is printed is how fast the tapes approach that limit. SQLite adds a log of 1,000 pages to each file before it
tidies up. metrics.jsonl has a line a second at most: it grows with time, not with merges, and more slowly the
older the run is.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from directories import limit_of, sizes_by_kind
from figures import growth, markdown, sized
from hardware import hardware, write_record

from atoll.config import RunConfig
from atoll.errors import AtollError
from atoll.runtime import children
from atoll.runtime.forking import OF_A_LEARNER, OF_A_SYNCER, prepare, warm_up
from atoll.runtime.keeping import Child, terminate, wait_for_ends
from atoll.runtime.processes import first_start
from atoll.runtime.reader import StatusClient

NUM_LEARNERS = 2
NUM_FRAGMENTS = 8
NUM_SAMPLES = 20
PAUSE_S = 0.25
LONGEST_S = 1800.0
END_S = 60.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One look: merges so far, and figures by name."""

    merges: int
    at_s: float
    figures: dict[str, float]


def config(keep_mb: int) -> RunConfig:
    """Defaults, one merge a step, all learners in every merge."""
    sync = {
        "num_fragments": NUM_FRAGMENTS,
        "interval_steps": NUM_FRAGMENTS,
        "num_learners": NUM_LEARNERS,
        "min_quorum": NUM_LEARNERS,
    }
    return RunConfig.from_tables({"sync": sync, "tape": {"keep_mb": keep_mb}})


def train_tiny(url: str, run_dir: str, name: str, pace_s: float) -> None:
    """A learner's process: a model of some 600 parameters, AdamW, a pause after each step."""
    import torch
    from torch import nn

    import atoll
    from atoll.runtime.security.tokens import read_token

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    state_dir = Path(run_dir) / "learners" / name
    state_dir.mkdir(parents=True, exist_ok=True)
    token = read_token(None, {}, Path(run_dir))
    learner = atoll.join(url, model=model, optimizer=optimizer, name=name, token=token, state_dir=state_dir)
    source = torch.Generator().manual_seed(learner.shard.index)
    with learner:
        while not learner.finished:
            inputs = torch.randn(8, 16, generator=source)
            loss = nn.functional.mse_loss(model(inputs), inputs[:, :2] * inputs[:, 2:4])
            loss.backward()  # type: ignore[no-untyped-call]  # torch has no types for it
            optimizer.step()
            optimizer.zero_grad()
            learner.step(tokens=8, loss=loss)
            time.sleep(pace_s)


def start(run_dir: Path, keep_mb: int, pace_s: float) -> list[Child]:
    """The syncer, then its learners."""
    logs = run_dir.parent / "logs"
    logs.mkdir(exist_ok=True)
    settings = (config(keep_mb).to_toml(), str(run_dir), 0)
    started = [Child("syncer", children.run_syncer, settings, logs / "syncer.log")]
    try:
        url = first_start(started[0], run_dir)
        for index in range(NUM_LEARNERS):
            name = f"learner-{index}"
            started.append(Child(name, train_tiny, (url, str(run_dir), name, pace_s), logs / f"{name}.log"))
            started[-1].start()
    except BaseException:
        stop(started)
        raise
    return started


def stop(started: Sequence[Child]) -> None:
    """Leave nobody behind."""
    terminate(started)
    for child in started:
        child.kill()


def measure(merges: int, began_s: float, run_dir: Path, started: Sequence[Child]) -> Sample:
    """One look at processes and files."""
    figures: dict[str, float] = dict(sizes_by_kind(run_dir))
    for child in started[:2]:
        assert child.process is not None
        proc = Path("/proc") / str(child.process.pid)
        pages = int((proc / "statm").read_text().split()[1])
        figures[f"{child.name}: memory"] = pages * os.sysconf("SC_PAGE_SIZE")
        figures[f"{child.name}: open files"] = len(list((proc / "fd").iterdir()))
    return Sample(merges, time.monotonic() - began_s, figures)


def soak(run_dir: Path, started: Sequence[Child], num_merges: int) -> list[Sample]:
    """Follow a run to so many merges, then end it."""
    began_s = time.monotonic()
    samples: list[Sample] = []
    every = max(1, num_merges // NUM_SAMPLES)
    token = (run_dir / "tokens" / "admin.token").read_text().strip()
    with StatusClient((run_dir / "url").read_text().strip(), token) as client:
        while not samples or samples[-1].merges < num_merges:
            if time.monotonic() - began_s > LONGEST_S:
                sys.exit(f"There were not {num_merges} merges within {LONGEST_S:g} s.")
            for child in started:
                if child.process is not None and child.process.exitcode is not None:
                    raise child.given_up(child.process.exitcode)
            time.sleep(PAUSE_S)
            merges = client.status()["merges"]
            if merges >= every * (len(samples) + 1):
                samples.append(measure(merges, began_s, run_dir, started))
        client.finish("the benchmark is over")
    wait_for_ends(started, END_S)
    return samples


def checked(command: str, run_dir: Path) -> dict[str, Any]:
    """What `atoll replay` or `atoll fsck` says of the run."""
    began_s = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "atoll", command, str(run_dir), "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    if not done.stdout.strip():
        sys.exit(f"atoll {command} said nothing: {done.stderr}")
    found = json.loads(done.stdout.splitlines()[-1])
    since = found["start"] if command == "replay" else f"from {found['since']}"
    return {
        "ok": found["ok"] and done.returncode == 0,
        "commits": found["commits"],
        "since": since,
        "problems": found["problems"],
        "seconds": time.monotonic() - began_s,
    }


def run(keep_mb: int, options: argparse.Namespace) -> dict[str, Any]:
    """One whole run: samples, trends, and what the commands say of its directory."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "soak"
        started = start(run_dir, keep_mb, options.pace_ms / 1e3)
        try:
            samples = soak(run_dir, started, options.merges)
        except AtollError as error:
            sys.exit(str(error))
        finally:
            stop(started)
        checks = {command: checked(command, run_dir) for command in ("replay", "fsck")}
    return {"keep_mb": keep_mb, "samples": samples, "checks": checks}


def rows_of(samples: Sequence[Sample], keep_mb: int) -> list[list[str]]:
    """A row per figure: at first, the highest of each half, and the line through the second half."""
    rows, half = [], len(samples) // 2
    at = [sample.merges for sample in samples]
    for name in samples[0].figures:
        values = [sample.figures[name] for sample in samples]
        found, verdict = growth(at, values, limit_of(name, keep_mb, NUM_LEARNERS))
        if name.endswith("open files"):
            seen, slope = [f"{v:g}" for v in values], f"{found.slope:+.2f} ± {found.error:.2f}"
        else:
            seen, slope = [sized(v) for v in values], f"{sized(found.slope)} ± {sized(found.error)}"
        highest = [
            max(range(low, high), key=values.__getitem__) for low, high in ((0, half), (half, len(at)))
        ]
        rows.append([name, *(seen[index] for index in (0, *highest)), slope, verdict])
    return rows


def table_of(result: dict[str, Any]) -> str:
    """A markdown table for people, and what the commands said."""
    samples = result["samples"]
    last = samples[-1]
    titles = ["", f"after {samples[0].merges:,}", "highest, first half", "highest, second half"]
    titles += ["slope per 1,000 merges, second half", "so"]
    lines = [
        f"tape.keep_mb = {result['keep_mb']}: {last.merges:,} merges in {last.at_s:.0f} s "
        f"({last.merges / last.at_s:.0f} a second)",
        "",
        markdown(titles, rows_of(samples, result["keep_mb"])),
        "",
        f"metrics grow with time, here by {last.figures['metrics'] / last.at_s / 1024:.1f} KiB a second",
    ]
    for command, found in result["checks"].items():
        ok = "ok" if found["ok"] else f"NOT ok: {'; '.join(found['problems'][:3])}"
        reach = f"{found['commits']:,} commits, {found['since']}"
        lines.append(f"atoll {command}: {ok}; {reach} ({found['seconds']:.1f} s)")
    return "\n".join(lines)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--merges", type=int, default=10_000)
    parser.add_argument(
        "--keep-mb", type=int, nargs="+", default=[1, 64], help="tape.keep_mb, a run for each"
    )
    parser.add_argument("--pace-ms", type=float, default=20.0, help="pause after each step of a learner")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    parser.add_argument("--record", action="store_true", help="keep table and JSON in benchmarks/records/")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    print(f"measured, load {load:.2f};", ", ".join(f"{k} {v}" for k, v in hardware().items()))
    prepare([*OF_A_SYNCER, *OF_A_LEARNER])
    warm_up()
    results, tables = [], []
    for keep_mb in options.keep_mb:
        results.append(run(keep_mb, options))
        tables.append(table_of(results[-1]))
        print(f"\n{tables[-1]}", flush=True)
    for result in results:
        result["samples"] = [
            {"merges": s.merges, "at_s": round(s.at_s, 1), **s.figures} for s in result["samples"]
        ]
    whole = {"hardware": hardware(), "load": load, "merges": options.merges, "runs": results}
    if options.record:
        path = write_record("Memory and disk over many merges", "\n\n".join(tables), load)
        path.with_suffix(".json").write_text(json.dumps(whole, indent=1) + "\n")
        print(f"kept in {path}, and as JSON beside it")
    if options.json:
        print(json.dumps(whole))
    if not all(found["ok"] for result in results for found in result["checks"].values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
