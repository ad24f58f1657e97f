"""What a run directory consists of, by kind, and how many bytes each kind has."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["KINDS", "kind_of", "sizes_by_kind"]

KINDS = ("run.db", "deltas", "snapshots", "metrics", "learners' tapes", "learners' state", "other files")


def kind_of(path: Path) -> str:
    """The kind of a file, by its path inside the run directory."""
    first = path.parts[0]
    if first.startswith("run.db"):  # and its log, which SQLite keeps beside it
        return "run.db"
    if first in ("deltas", "snapshots"):
        return first
    if first == "metrics.jsonl":
        return "metrics"
    if first == "learners":
        return "learners' tapes" if path.name.startswith("tape-") else "learners' state"
    return "other files"


def sizes_by_kind(run_dir: Path) -> dict[str, int]:
    """Bytes of a run directory, which may change under the look."""
    sizes = dict.fromkeys(KINDS, 0)
    for folder, _, names in os.walk(run_dir):
        for name in names:
            path = Path(folder) / name
            try:
                sizes[kind_of(path.relative_to(run_dir))] += path.stat().st_size
            except FileNotFoundError:
                continue
    return sizes
