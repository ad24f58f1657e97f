"""Kill -9 at every named point of the protocol: nothing is lost, nothing counts twice, nobody waits.

One run of real processes per point (`kill_run`), several at a time; many times each by command:
python -m tests.chaos.kill_matrix --times 5
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from atoll.runtime.failpoints import POINTS
from tests.chaos.kill_matrix import lines_of, runs_at
from tests.chaos.kill_run import Row


@pytest.fixture(scope="module")
def runs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[Row]]]:
    """All runs that this session asks for, begun together."""
    chosen = [
        item.callspec.params.get("point") for item in request.session.items if hasattr(item, "callspec")
    ]
    with runs_at([point for point in POINTS if point in chosen], tmp_path_factory.mktemp("matrix")) as begun:
        yield dict(begun)


@pytest.mark.parametrize("point", POINTS)
def test_whoever_is_killed_at_a_point_comes_back_and_the_run_has_lost_nothing(point, runs):
    row = runs[point].result()
    print(*lines_of(row), sep="\n")
    assert row.problems == []
    assert row.how_killed == "kill -9"
    assert row.num_merges >= 3
    assert row.num_checks > 500
