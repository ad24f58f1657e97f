"""Failpoints do nothing until a test arms one, and then act once, at the right time."""

from __future__ import annotations

import multiprocessing
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from atoll.runtime.failpoints import POINTS, arm, disarm, reach

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _no_trap_is_left() -> Iterator[None]:
    yield
    disarm()


def test_a_point_that_nobody_armed_does_nothing():
    for point in POINTS:
        reach(point)


def test_a_trap_acts_once_at_the_time_it_was_set_for_and_at_no_other_point():
    acts: list[str] = []
    arm("S9", 3, lambda: acts.append("S9"))
    for _ in range(5):
        reach("S8")
    assert acts == []
    reach("S9")
    reach("S9")
    assert acts == []
    for _ in range(4):
        reach("S9")
    assert acts == ["S9"]


def test_a_trap_that_was_taken_away_or_replaced_does_not_act():
    acts: list[str] = []
    arm("L0", 1, lambda: acts.append("L0"))
    arm("L1", 1, lambda: acts.append("L1"))
    reach("L0")
    disarm()
    reach("L1")
    assert acts == []


def test_a_point_that_does_not_exist_cannot_be_armed():
    with pytest.raises(ValueError, match="no point 'S99'"):
        arm("S99")


def _die_at_the_second_time() -> None:
    arm("S0", 2)
    reach("S0")
    reach("S0")
    raise SystemExit(1)  # not reached


def test_by_default_the_process_is_killed_on_the_spot():
    process = multiprocessing.get_context("forkserver").Process(target=_die_at_the_second_time)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL


def test_every_point_lies_in_the_runtime_and_no_other_is_reached_there():
    sources = (ROOT / "src" / "atoll").rglob("*.py")
    text = "\n".join(path.read_text(encoding="utf-8") for path in sources if path.name != "failpoints.py")
    reached = set(re.findall(r'"([LS]\d+)"', text))
    assert reached == set(POINTS)
    assert len([point for point in POINTS if point[0] == "L"]) == 14
    assert len([point for point in POINTS if point[0] == "S"]) == 13


def test_the_product_can_reach_points_and_arm_none():
    home = ROOT / "src" / "atoll" / "runtime" / "failpoints.py"
    sources = [path for path in (ROOT / "src" / "atoll").rglob("*.py") if path != home]
    imports = {
        line
        for path in sources
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.search(r"import.*failpoints|failpoints.*import", line)
    }
    assert imports == {"from atoll.runtime.failpoints import reach"}
    assert "os.environ" not in home.read_text(encoding="utf-8")


def test_the_page_lists_every_point_with_its_sentence():
    page = (ROOT / "docs" / "failpoints.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([LS]\d+) \| (.+?) \| `", page, re.MULTILINE)
    assert dict(rows) == POINTS
    assert list(dict(rows)) == list(POINTS)
