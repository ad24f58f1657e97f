from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from atoll.sim.lab.cell import Cell, Row
from atoll.sim.lab.experiments.closing import CLOSING, share_closed
from atoll.sim.lab.experiments.ideas import IDEAS, Idea, Mix, cell_with, plain_cell
from atoll.sim.lab.report import Report, Request
from atoll.sim.lab.tuned import cell_for, tuned
from tests.unit.sim.lab.made_up import drive, made_up

PLAIN = plain_cell(4, 1)
BITS_OF = {"bf16": 16, "int8": 8.125, "int4": 4.125, "int2": 2.125}

Cost = Callable[[Cell], float]


def idea(name: str) -> Idea:
    (found,) = [one for one in IDEAS if one.name == name]
    return found


def planned_bytes(cell: Cell) -> float:
    """What the whole run sends per value and learner, by the settings alone."""
    steps = cell.tokens / cell.batch
    early = cell.ideas.early_share if cell.ideas.early_interval else 0.0
    rounds = steps * (1 - early) / cell.interval_steps
    rounds += steps * early / cell.ideas.early_interval if early else 0.0
    return rounds * (BITS_OF[cell.codec_up] + (32 if cell.ideas.mean_moments else 0))


def train(cell: Cell, cost: Cost) -> Row:
    """Data-Parallel at 2, the plain settings 5 % above, everything else by `cost` percent off the default."""
    base = 2 + 0.02 * cell.seed
    if cell.method == "data-parallel":
        gain = 0.01 if cell.ideas.beta2 else 0.0
        return made_up(cell, base - gain, bytes_up=0, bytes_down=0)
    plain = plain_cell(cell.learners, cell.seed)
    is_plain = cell == plain
    change = 0.0 if is_plain else cost(cell) + 0.01 * (cell.seed % 3)
    sent = round(1e6 * planned_bytes(cell) / planned_bytes(plain))
    return made_up(cell, 1.05 * base * (1 + change / 100), bytes_up=sent, bytes_down=sent)


def report_of(cost: Cost, seeds: int = 5) -> tuple[list[Cell], Report]:
    return drive(CLOSING.stages(Request(seeds=seeds)), lambda cell: train(cell, cost))


def good_ideas(cell: Cell) -> float:
    """tau 1 and int4 help, and add up; batch x 2 helps too little to be clear; the rest hurts."""
    change = 0.5 + 3.0 * (cell.momentum_warmup > 0)
    change -= 2.0 * (cell.overlap_steps == 1)
    change -= 1.5 * (cell.codec_up == "int4") - 0.1 * (cell.mu == 0)
    if cell.batch > plain_cell(cell.learners, cell.seed).batch:
        change -= 0.6
    return change


@pytest.mark.parametrize("one", IDEAS, ids=lambda one: one.name)
def test_each_idea_sends_the_bytes_of_the_default(one: Idea) -> None:
    cell = cell_with(PLAIN, (one,))
    assert planned_bytes(cell) == pytest.approx(one.bytes_share * planned_bytes(PLAIN), rel=0.07)
    assert cell.tokens == PLAIN.tokens
    assert cell != PLAIN


def test_combined_ideas_keep_to_the_same_bytes_and_to_legal_cuts() -> None:
    mixes: list[Mix] = [(one, other) for one in IDEAS for other in IDEAS if one.kind < other.kind]
    for mix in mixes:
        cell = cell_with(PLAIN, mix)
        share = planned_bytes(cell) / planned_bytes(PLAIN)
        assert 0.75 < share / math.prod(one.bytes_share for one in mix) < 1.1  # a small H is a whole number
        assert cell.num_fragments <= min(
            cell.interval_steps, cell.ideas.early_interval or cell.interval_steps
        )


def test_no_idea_at_all_is_the_default() -> None:
    assert cell_with(PLAIN, ()) == PLAIN


def test_fewer_bits_travel_more_often_and_plain_averages_have_no_momentum() -> None:
    often = cell_with(PLAIN, (idea("int4 at a quarter of H"),))
    assert (often.interval_steps, often.num_fragments, often.eta, often.mu) == (6, 6, PLAIN.eta, PLAIN.mu)
    oftener = cell_with(PLAIN, (idea("int2 at an eighth of H, plain averages, rebase"),))
    assert (oftener.interval_steps, oftener.num_fragments, oftener.adopt) == (3, 3, "rebase")
    assert (oftener.eta, oftener.mu, oftener.learning_rate) == (1.0, 0.0, PLAIN.learning_rate)


def test_an_idea_may_take_the_rate_that_was_tried_for_our_defaults_at_its_m() -> None:
    name = "int8 at half of H, mu 0.8, warm-up and cool-down"
    plain = plain_cell(8, 1)
    ours, theirs = (cell_with(plain, (idea(name + which),)) for which in (", our rate", ""))
    assert theirs.learning_rate == plain.learning_rate
    assert ours.learning_rate == tuned("text", "tiny", "defaults", 8).learning_rate
    assert replace(ours, learning_rate=theirs.learning_rate) == theirs


def test_a_larger_batch_takes_fewer_steps_a_higher_rate_and_a_smaller_interval() -> None:
    cell = cell_with(PLAIN, (idea("batch x 2"),))
    assert (cell.batch, cell.interval_steps) == (2 * PLAIN.batch, 12)
    assert cell.learning_rate == pytest.approx(PLAIN.learning_rate * 2**0.5)


def test_often_early_is_a_third_of_the_interval_and_later_three_times() -> None:
    cell = cell_with(PLAIN, (idea("often early, rarely later"),))
    assert (cell.ideas.early_interval, cell.ideas.early_share, cell.interval_steps) == (8, 0.25, 72)


def test_seeds_that_only_choose_choose_and_the_best_have_all_others() -> None:
    asked, _ = report_of(good_ideas)
    screened = [cell for cell in asked if cell.seed > 1000]
    final = [cell for cell in asked if cell.seed <= 1000]
    # Data-Parallel, also with the two ideas that it can take, and at each M the default, all ideas, and the
    # best two together
    assert len({cell.key for cell in screened}) == 2 * (3 + 2 * (1 + len(IDEAS) + 1))
    assert {cell.seed for cell in screened} == {1001, 1002}
    assert {cell.learners for cell in screened if cell.method == "decoupled"} == {4, 8}
    assert {cell.seed for cell in final} == {1, 2, 3, 4, 5}
    # Data-Parallel, and at each M the default, four ideas, and the two with a clear gain together
    assert len(final) == 5 * (1 + 2 * (1 + 4 + 1))


def test_ideas_with_a_clear_gain_are_combined_one_of_each_kind() -> None:
    _, report = report_of(good_ideas)
    names = [row[0] for row in report.tables[0].rows]
    rounds = "int4 at a quarter of H"
    assert names[:2] == ["Data-Parallel", "plain settings"]
    assert names[2] == f"tau 1, and so half the grace + {rounds}"
    assert sum(" + " in name for name in names) == 1
    assert report.pictures[0].names[0] == f"tau 1, and so half the grace + {rounds}"
    assert all(f"tau 1, and so half the grace + {rounds}" in claim.text for claim in report.claims)


def test_the_claims_are_about_what_was_best_when_screened_whatever_comes_later() -> None:
    def fickle(cell: Cell) -> float:
        wanted = "rebase" if cell.seed > 1000 else "overwrite"
        return -1.0 if cell.adopt == wanted and cell.codec_up == "bf16" else 1.0

    _, report = report_of(fickle)
    assert all("halved by: rebase" in claim.text for claim in report.claims)
    assert [claim.verdict for claim in report.claims] == ["fails", "fails"]


def test_each_m_has_its_own_best() -> None:
    def by_count(cell: Cell) -> float:
        return -1.0 if cell.adopt == "rebase" and (cell.codec_up == "bf16") == (cell.learners == 4) else 1.0

    _, report = report_of(by_count)
    four, eight = (claim.text for claim in report.claims)
    assert "M = 4 is halved by: rebase" in four
    assert "M = 8 is halved by: int4 at a quarter of H, plain averages, rebase" in eight
    assert [table.rows[2][0] for table in report.tables[:2]] == [
        "rebase", "int4 at a quarter of H, plain averages, rebase",
    ]  # fmt: skip


def test_nothing_is_combined_when_nothing_helps_and_the_losers_are_all_there() -> None:
    _, report = report_of(lambda cell: 1.0)
    final, screened = report.tables[:2], report.tables[2:]
    for ours, theirs in zip(final, screened, strict=True):
        names = {row[0] for row in theirs.rows if not row[0].startswith("Data-Parallel")}
        assert {row[0] for row in ours.rows} < {row[0] for row in theirs.rows}
        assert names == {"plain settings", *(one.name for one in IDEAS)}
        assert {row[2] for row in theirs.rows} == {"2"}
        assert {row[2] for row in ours.rows} == {"5"}
    assert [claim.verdict for claim in report.claims] == ["fails", "fails"]
    assert [len(picture.names) for picture in report.pictures[2:]] == [len(IDEAS)] * 2


def test_the_gap_counts_as_halved_only_where_half_of_it_is_closed() -> None:
    _, report = report_of(good_ideas)
    assert [claim.verdict for claim in report.claims] == ["holds", "holds"]
    assert report.figures["plain_gap_m4_percent"] == pytest.approx(5.0)
    assert report.figures["best_gap_m4_percent"] == pytest.approx(1.9, abs=0.1)
    assert report.figures["gap_closed_m4_percent"] == pytest.approx(63, abs=2)
    _, report = report_of(lambda cell: -1.0 * (cell.learners == 4 and cell.adopt == "rebase"))
    assert [claim.verdict for claim in report.claims] == ["fails", "fails"]


def test_what_data_parallel_gains_by_an_idea_closes_no_gap() -> None:
    """beta2 gives learners 2 % and Data-Parallel 0.5 %: of a gap of 5 % that closes less than 2 / 5."""
    _, report = report_of(lambda cell: -2.0 if cell.ideas.beta2 else 1.0)
    assert all("beta2" in claim.text for claim in report.claims)
    assert report.figures["gap_closed_m4_percent"] == pytest.approx(100 * (2.1 - 0.5) / 5, abs=1)
    names = [row[0] for row in report.tables[0].rows]
    assert names[:3] == ["Data-Parallel", "Data-Parallel, beta2 0.99", "plain settings"]


def test_without_a_gap_there_is_nothing_to_close() -> None:
    _, report = drive(CLOSING.stages(Request(seeds=3)), lambda cell: made_up(cell, 2.0))
    assert {claim.verdict for claim in report.claims} == {"not resolved"}
    assert {claim.advice for claim in report.claims} == {"There is no gap to close."}


def test_one_seed_resolves_nothing() -> None:
    _, report = report_of(good_ideas, seeds=1)
    assert {claim.verdict for claim in report.claims} == {"not resolved"}


def test_the_table_says_the_bytes_of_each_row() -> None:
    _, report = report_of(good_ideas)
    by_name = {row[0]: row for row in report.tables[-1].rows}
    assert by_name["plain settings"][6:] == ("2.0", "100 %")
    assert by_name["int4 at a quarter of H"][7] == "103 %"
    assert by_name["often early, rarely later"][1] == "8, then 72"
    assert by_name["Data-Parallel"][5:] == ("-", "-", "-")


def test_a_run_that_blew_up_is_not_chosen_and_stays_in_the_table() -> None:
    _, report = report_of(lambda cell: math.nan if cell.adopt == "rebase" else good_ideas(cell))
    by_name = {row[0]: row for row in report.tables[-1].rows}
    assert by_name["rebase"][2:6] == ("2", "not finite", "not finite", "-")
    assert not any("rebase" in claim.text for claim in report.claims)


def rows(*losses: float) -> list[Row]:
    return [made_up(cell_for("decoupled", 4, seed), loss) for seed, loss in enumerate(losses, 1)]


def test_the_share_is_a_ratio_of_means_that_one_seed_without_a_gap_cannot_blow_up() -> None:
    lock_step, plain = rows(2.0, 2.0, 2.0), rows(2.2, 2.001, 2.2)
    share = share_closed(rows(2.1, 2.0, 2.1), plain, lock_step, lock_step)
    assert share.mean == pytest.approx(100 * 0.201 / 0.401)
    assert 45 < share.low < share.mean < share.high < 55


def test_the_whole_gap_is_a_hundred_percent_exactly_and_no_gap_has_no_share() -> None:
    lock_step, plain = rows(2.0, 2.1), rows(2.2, 2.4)
    whole = share_closed(lock_step, plain, lock_step, lock_step)
    assert (whole.low, whole.mean, whole.high) == pytest.approx((100, 100, 100))
    assert math.isnan(share_closed(plain, lock_step, lock_step, lock_step).mean)
