from __future__ import annotations

import pytest

from atoll.numerics.codec import CODECS
from atoll.sim.lab.cell import Cell, Row
from atoll.sim.lab.experiments.bits import BITS, WIRES
from atoll.sim.lab.report import FINE, Report, Request
from tests.unit.sim.lab.made_up import drive, made_up

VALUES = 900 * 93_000 / 12
BITS_OF = {"f32": 32, "bf16": 16, "int8": 8.125, "int4": 4.125, "fp4": 4.125, "int2": 2.125}


def train(cell: Cell, costs: dict[tuple[str, bool], float]) -> Row:
    """A row whose loss is so many percent above the others of its seed, and whose bytes are right."""
    cost = costs.get((cell.codec_up, cell.error_feedback), 0.0)
    wobble = 0.01 * (cell.seed % 3) * (cell.codec_up != "bf16")
    return made_up(
        cell,
        (2 + 0.1 * cell.seed) * (1 + (cost + wobble) / 100),
        bytes_up=round(VALUES * 4 * BITS_OF[cell.codec_up] / 8),
        bytes_down=round(VALUES * 4 * BITS_OF[cell.codec_down] / 8),
    )


def report_of(costs: dict[tuple[str, bool], float], seeds: int = 5) -> tuple[list[Cell], Report]:
    return drive(BITS.stages(Request(seeds=seeds)), lambda cell: train(cell, costs))


def line(report: Report, name: str) -> tuple[str, ...]:
    (found,) = [row for row in report.tables[0].rows if row[0] == name]
    return found


def test_a_seed_costs_fifteen_runs_and_those_of_the_claims_get_more_seeds() -> None:
    assert len(report_of({}, seeds=1)[0]) == 15 == len(WIRES)
    asked, report = report_of({}, seeds=2)
    assert len(asked) == 2 * 15 + 4 * 2 * (FINE - 1)
    assert {claim.seeds for claim in report.claims} == {2 * FINE}
    assert (line(report, "int4 both ways")[3], line(report, "int8 both ways")[3]) == (f"{2 * FINE}", "2")
    assert len({cell.key for cell in asked}) == len(asked)
    assert {cell.learners for cell in asked} == {4}


def test_all_codecs_are_there_and_the_coarse_ones_both_ways_up_only_and_without_feedback() -> None:
    asked, _ = report_of({}, seeds=1)
    assert {cell.codec_up for cell in asked} == set(CODECS)
    for codec in ("int4", "int2"):
        ways = {(cell.codec_down, cell.error_feedback) for cell in asked if cell.codec_up == codec}
        assert ways == {(down, feedback) for down in (codec, "bf16") for feedback in (True, False)}
    assert all(CODECS[cell.codec_up].wants_feedback for cell in asked if not cell.error_feedback)


def test_runs_differ_in_their_codecs_and_in_nothing_else() -> None:
    asked, _ = report_of({}, seeds=1)
    free = {"codec_up", "codec_down", "error_feedback"}
    assert len({str({k: v for k, v in cell.settings().items() if k not in free}) for cell in asked}) == 1


def test_the_table_shows_the_bits_that_were_sent_each_way() -> None:
    _, report = report_of({})
    assert line(report, "f32")[1:3] == ("32", "32")
    assert line(report, "int4 both ways")[1:3] == ("4.125", "4.125")
    assert line(report, "int2 up only, no feedback")[1:3] == ("2.125", "16")


def test_claims_hold_when_four_bits_are_free_and_feedback_rescues_two() -> None:
    _, report = report_of({("int2", False): 3.0, ("int2", True): 1.0})
    assert [claim.verdict for claim in report.claims] == ["holds", "holds", "holds"]
    assert report.figures["int2_without_feedback_percent"] == pytest.approx(3.0, abs=0.05)
    assert report.figures["int2_feedback_gain_percent"] == pytest.approx(-1.94, abs=0.05)
    assert "-1.94 %" in report.notes[0]


def test_claims_fail_when_four_bits_cost_and_two_are_free() -> None:
    _, report = report_of({("int4", True): 1.0, ("int2", True): 0.1, ("int2", False): -0.1})
    assert [claim.verdict for claim in report.claims] == ["fails", "fails", "fails"]


def test_one_seed_resolves_nothing_and_a_run_that_blew_up_is_still_in_the_table() -> None:
    _, report = report_of({}, seeds=1)
    assert {claim.verdict for claim in report.claims} == {"not resolved"}
    _, report = report_of({("int2", False): float("nan")})
    assert line(report, "int2 both ways, no feedback")[4:] == ("not finite", "not finite")


def test_the_picture_has_a_bar_with_an_interval_for_every_arm_but_bf16() -> None:
    _, report = report_of({})
    (picture,) = report.pictures
    assert len(picture.names) == len(picture.series[0].y) == len(picture.series[0].error) == 14
    assert "bf16" not in picture.names
