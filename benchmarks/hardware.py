"""What the benchmarks share: the machine's name, paired repeats, how a number is printed, and records."""

from __future__ import annotations

import datetime
import os
import platform
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

__all__ = ["hardware", "interleaved", "median_and_spread", "write_record"]


def hardware() -> dict[str, str | int]:
    """Processor, cores, torch and vector level."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        named = [
            line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if "model name" in line
        ]
        model = named[0] if named else model
    return {
        "cpu": model,
        "cores": os.cpu_count() or 0,
        "torch": torch.__version__,
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "torch_threads": torch.get_num_threads(),
    }


def interleaved(runs: dict[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Seconds of each run, all of them once per repeat, so that a noisy moment hits every one alike."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    for _ in range(repeats):
        for name, run in runs.items():
            begin = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - begin)
    return seconds


def median_and_spread(values: list[float]) -> tuple[float, float, float]:
    """Median, smallest, largest."""
    return statistics.median(values), min(values), max(values)


def write_record(title: str, table: str, load: float) -> Path:
    """Keep a printed table beside its command, commit, hardware and the load before it began."""
    here = Path(__file__).parent
    script, *options = sys.argv
    command = shlex.join(["python", f"benchmarks/{Path(script).name}", *options])
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=here, capture_output=True, text=True, check=False
    )
    day = datetime.date.today().isoformat()
    path = here / "records" / f"{Path(script).stem.replace('_', '-')}-{day}.md"
    described = ", ".join(f"{key} {value}" for key, value in hardware().items())
    path.write_text(
        f"# {title}, {day}\n\nAll numbers measured. Command: `{command}`. Commit: {commit.stdout.strip()}. "
        f"Hardware:\n{described}.\nLoad average before it began: {load:.2f}.\n\n```\n{table}\n```\n"
    )
    return path
