"""docs/scale.md says what the commands say: cheap tables are made again here, and all must be complete."""

from __future__ import annotations

import math
import re
from functools import lru_cache

import pytest

from atoll.sim.bandwidth.closed import needed_bits_per_s, scavenging
from atoll.sim.bandwidth.traffic import Traffic
from atoll.sim.fleet.fit import read_table
from atoll.sim.fleet.model import even_fleet
from atoll.sim.fleet.presets import MAX_RMS_POINTS, MAX_WORST_POINTS, TABLE1
from docs.scale_pictures import DOCS, PICTURES, main
from docs.scale_tables import TABLES, between, page_with, run

PAGE = (DOCS / "scale.md").read_text(encoding="utf-8")
CURE = "python docs/scale_pictures.py {}"

answer = lru_cache(maxsize=None)(run)


def cells(name: str) -> list[list[str]]:
    """The rows of a table of the page, without its head."""
    lines = [line for line in between(PAGE, name).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def number(text: str) -> float:
    found = re.match(r"[-+]?[\d,.]+", text)
    assert found, f"{text!r} has no number"
    return float(found[0].replace(",", ""))


@pytest.mark.parametrize("name", TABLES)
def test_every_table_is_there_once_below_the_commands_that_made_it(name: str):
    assert PAGE.count(f"<!-- {name} -->") == PAGE.count(f"<!-- /{name} -->") == 1
    commands = "\n".join(TABLES[name].commands)
    assert between(PAGE, name).startswith(f"\n```\n{commands}\n```\n"), CURE.format(name)
    assert cells(name), CURE.format(name)


def test_every_mark_of_the_page_is_a_table():
    assert sorted(re.findall(r"<!-- (\w+) -->", PAGE)) == sorted(TABLES)


@pytest.mark.parametrize("name", PICTURES)
def test_every_picture_is_there_with_the_command_that_drew_it(name: str):
    assert f"]({name})" in PAGE
    assert f"{PICTURES[name]} docs/{name}\n" in PAGE
    assert (DOCS / name).stat().st_size > 10_000


def test_the_thirty_cells_are_what_the_simulation_gives():
    found = answer(*TABLES["table1"].commands)
    shown = [cell for row in cells("table1") for cell in row[1:]]
    assert len(shown) == len(found["cells"]) == len(TABLE1) == 30
    for text, cell, paper in zip(shown, found["cells"], TABLE1, strict=True):
        ours, theirs, residual = (float(part) for part in re.findall(r"[-+]?\d+\.?\d*", text))
        assert ours == pytest.approx(cell["goodput_percent"], abs=0.051), CURE.format("table1")
        assert theirs == paper.goodput_percent
        assert residual == pytest.approx(ours - theirs, abs=0.11)
    rms, worst = re.findall(r"rms ([\d.]+) points, worst ([-+][\d.]+)", between(PAGE, "table1"))[0]
    assert float(rms) == pytest.approx(found["rms"], abs=0.0051)
    assert float(rms) <= MAX_RMS_POINTS
    assert abs(float(worst)) <= MAX_WORST_POINTS


def test_the_two_largest_misses_are_those_that_the_page_names():
    shown = [cell for row in cells("table1") for cell in row[1:]]
    residuals = [abs(float(re.findall(r"[-+]\d+\.\d+", text)[0])) for text in shown]
    largest = sorted(range(len(TABLE1)), key=lambda i: -residuals[i])[:2]
    assert sorted((TABLE1[i].chips, TABLE1[i].learners) for i in largest) == [(2_400_000, 4), (2_400_000, 16)]
    assert "largest misses are 4 and 16 learners on 2.4M chips" in PAGE


@pytest.mark.parametrize("name", ["headline", "scavenging", "table4", "twelve"])
def test_what_has_no_chance_in_it_is_the_same_to_the_letter(name: str):
    answers = [answer(command) for command in TABLES[name].commands]
    assert page_with(PAGE, name, answers) == PAGE, CURE.format(name)


def test_the_closed_forms_say_what_the_page_says_of_twelve_billion_parameters():
    for row in cells("twelve"):
        method, bits = row[0].removesuffix(" bits").split(", ")
        traffic = Traffic(12e9, 2.0, float(bits), 4, 24, 24, 2, 0.06)
        for cu, text in zip((0.5, 0.8, 0.9, 0.95, 0.99), row[1:6], strict=True):
            closed = needed_bits_per_s(method.lower(), traffic, cu) / 1e9
            if text == "never":
                assert math.isinf(closed)
            else:
                assert number(text) == pytest.approx(closed, rel=0.015)
    assert [number(row[2]) for row in cells("scavenging")] == pytest.approx(
        [scavenging(extra) for extra in (0.25, 0.5, 1.0, 3.0)], abs=0.0006
    )


def test_uptime_and_shocks_are_near_their_formulas():
    for row in cells("uptime"):
        assert number(row[2]) == pytest.approx(number(row[3]), abs=0.3)
    for row in cells("shocks"):
        for simulated in row[2:4]:
            assert number(simulated) == pytest.approx(number(row[1]), abs=0.006)


def test_no_function_of_chips_per_learner_comes_nearer_than_one_point():
    groups: dict[int, list[float]] = {}
    for cell in TABLE1:
        if cell.elastic:
            groups.setdefault(cell.chips // cell.learners, []).append(cell.goodput_percent)
    squares = [(value - sum(g) / len(g)) ** 2 for g in groups.values() for value in g]
    assert math.sqrt(sum(squares) / len(squares)) == pytest.approx(1.0, abs=0.05)
    assert "than an rms of 1.0 points" in PAGE


def test_the_table_that_is_fitted_is_the_papers():
    assert read_table(DOCS / "scale-table1.csv") == TABLE1


def test_the_fleet_of_the_week_loses_a_chip_every_thirteen_seconds():
    fleet = even_fleet(2_400_000, 16)
    assert round(fleet.islands[0].mtbi_s / fleet.chips) == 13
    assert "about every 13 seconds" in PAGE


def test_an_unknown_name_is_refused_with_the_known_ones(capsys: pytest.CaptureFixture[str]):
    assert main(["table9"]) == 2
    assert "table4" in capsys.readouterr().out
