"""What the benchmarks share: the machine's name, paired repeats, and how a number is printed."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

__all__ = ["hardware", "interleaved", "median_and_spread"]


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
