"""What a run directory consists of, by kind, and how many bytes each kind has."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["KINDS", "kind_of", "limit_of", "sizes_by_kind"]

KINDS = ("run.db", "deltas", "snapshots", "metrics", "learners' tapes", "learners' state", "other files")

MIB = 1 << 20
OVERHEAD = 2
"""What SQLite makes of its content, at most: pages that are partly filled, and those that a cut has freed."""
LOG_BYTES = 6 * MIB
"""Its log has 1,000 pages of 4 KiB before it is emptied, and a cut, which is one transaction, on top."""


def limit_of(kind: str, keep_mb: int, num_learners: int) -> int | None:
    """How large a kind may become by its design; None for what should not grow at all."""
    of_one = OVERHEAD * keep_mb * MIB + LOG_BYTES
    return {"run.db": of_one, "learners' tapes": num_learners * of_one}.get(kind)


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
