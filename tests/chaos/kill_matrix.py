"""The kill matrix by command: every point, as often as you like, and the table.

    python -m tests.chaos.kill_matrix --times 5
    python -m tests.chaos.kill_matrix --points L7,S9 --times 20 --keep /tmp/matrix

Each repetition dies one time later at its point than the one before. Exit code 1 if a run is not as it should
be; with --keep the directories of all runs stay.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from atoll.runtime.failpoints import POINTS
from tests.chaos.kill_run import Row, prepare, run_point

__all__ = ["NUM_AT_ONCE", "lines_of", "main", "runs_at"]

NUM_AT_ONCE = 4
"""Runs that go on at the same time: most of a run is waiting."""
HEAD = (
    f"{'point':5}  {'what':46}  {'killed':8}  {'back after':>10}  "
    f"{'merges':>6}  {'checks':>7}  {'violations':>10}  verdict"
)


@contextmanager
def runs_at(
    points: Sequence[str], folder: Path, times: int = 1, num_at_once: int = NUM_AT_ONCE
) -> Iterator[list[tuple[str, Future[Row]]]]:
    """Begin a run per point, several at a time, and again; inside the `with` are their results to come."""
    prepare()
    pool = ThreadPoolExecutor(num_at_once)
    try:
        yield [
            (point, pool.submit(run_point, point, folder / str(again), again))
            for again in range(times)
            for point in points
        ]
    finally:
        pool.shutdown(cancel_futures=True)


def lines_of(row: Row) -> Iterator[str]:
    """The row of a table, and below it what is wrong."""
    yield (
        f"{row.point:5}  {POINTS[row.point]:46}  {row.how_killed:8}  {row.back_s:8.2f} s  "
        f"{row.num_merges:6}  {row.num_checks:7}  {len(row.problems):10}  {'ok' if row.ok else 'NOT OK'}"
    )
    yield from (f"       {problem}" for problem in row.problems)


def main(arguments: Sequence[str] | None = None) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description="Kill -9 at every named point of the protocol.")
    parser.add_argument("--times", type=int, default=1, help="runs per point")
    parser.add_argument("--points", default=",".join(POINTS), help="for example L7,S9")
    parser.add_argument("--at-once", type=int, default=NUM_AT_ONCE, help="runs at the same time")
    parser.add_argument("--keep", type=Path, help="a folder for the runs' directories")
    options = parser.parse_args(arguments)
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="atoll-matrix-") as temporary:
        folder = options.keep or Path(temporary)
        print(HEAD, flush=True)
        with runs_at(options.points.split(","), folder, options.times, options.at_once) as runs:
            rows = [_printed(future.result()) for _, future in runs]
    num_bad = sum(not row.ok for row in rows)
    print(f"{len(rows)} kills, {num_bad} not as they should be, {time.monotonic() - began_s:.0f} s")
    return 1 if num_bad else 0


def _printed(row: Row) -> Row:
    print("\n".join(lines_of(row)), flush=True)
    return row


if __name__ == "__main__":
    sys.exit(main())
