"""Tables and claims of the lab say the same on a terminal and in Markdown, and lose nothing."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from rich.console import Console, RenderableType

from atoll.observe.lab_tables import markdown, markdown_claims, render, render_claims, sentence
from atoll.sim.lab.report import Claim, Table

TABLE = Table(
    title="Loss by method [M = 4]",
    columns=("method", "held-out loss", "against Streaming", "finding"),
    rows=(
        ("decoupled, K = 1 | grace", "1.734 ± 0.006", "+0.12 % (-0.05..+0.29)", "as good"),
        ("[bold]streaming", "11.731 ± 0.004", "-", "the yardstick, which waits for all the others"),
    ),
    notes=("Five seeds.", "Same data."),
)
CLAIM = Claim(
    text="Asynchrony is free.", value=0.12, low=-0.05, high=0.29, limit=0.5, seeds=5, verdict="holds",
    is_change=True,
)  # fmt: skip


def printed(shown: RenderableType, width: int = 100) -> list[str]:
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(shown)
    return [line.rstrip() for line in capture.get().splitlines()]


def test_a_table_stands_under_its_title_and_above_its_notes():
    lines = printed(render(TABLE))
    assert lines[0] == "Loss by method [M = 4]"
    assert lines[1].split("  ")[0] == "method"
    assert lines[-2:] == ["Five seeds.", "Same data."]


def test_figures_end_and_words_begin_in_one_place():
    lines = printed(render(TABLE))
    first, second = (next(line for line in lines if name in line) for name in ("decoupled", "streaming"))
    assert first.index("1.734 ± 0.006") == second.index("11.731 ± 0.004") + 1
    assert first.index("as good") == second.index("the yardstick")


def test_what_looks_like_markup_is_printed_as_it_is():
    assert any(line.startswith("[bold]streaming") for line in printed(render(TABLE)))


def test_figures_stay_on_one_line_while_there_is_room_and_words_wrap():
    lines = printed(render(TABLE, 86), 86)
    assert any("11.731 ± 0.004" in line for line in lines)
    assert any("+0.12 % (-0.05..+0.29)" in line for line in lines)
    assert not any("the yardstick, which waits for all the others" in line for line in lines)


def test_a_table_too_wide_for_its_words_comes_in_parts_that_name_their_rows():
    titles = tuple(f"quantity-{number}" for number in range(8))
    rows = tuple((name, size, *(f"{size}.{n}" for n in range(8))) for name in "ab" for size in ("10", "20"))
    table = Table(title="t", columns=("method", "M", *titles), rows=rows)
    lines = printed(render(table, 60), 60)
    heads = [line.split() for line in lines if line.startswith("method")]
    assert heads == [["method", "M", *titles[:4]], ["method", "M", *titles[4:]]]
    assert [line.split() for line in lines if line.startswith("b ")] == [
        ["b", size, *(f"{size}.{n}" for n in part)]
        for part in (range(4), range(4, 8))
        for size in ("10", "20")
    ]
    assert len([line for line in printed(render(table, 120), 120) if line.startswith("method")]) == 1


@pytest.mark.parametrize("width", [100, 60, 40])
def test_no_letter_is_cut_off_however_narrow_it_is(width):
    lines = printed(render(TABLE, width), width)
    assert max(map(len, lines)) <= width
    letters = "".join("".join(lines).split())
    for cell in (*TABLE.columns, *(cell for row in TABLE.rows for cell in row)):
        assert all(letters.count(char) >= cell.count(char) for char in cell if not char.isspace())


def test_the_first_column_names_rows_even_if_the_names_are_numbers():
    table = Table(title="t", columns=("M", "loss"), rows=(("2", "1.5"), ("16", "1.6")))
    assert markdown(table).splitlines()[3] == "| :--- | ---: |"
    assert [line.split()[0] for line in printed(render(table))[-2:]] == ["2", "16"]
    assert printed(render(table))[-2].startswith("2 ")


def test_markdown_has_the_same_cells_with_bars_escaped():
    assert markdown(TABLE) == (
        "**Loss by method [M = 4]**\n\n"
        "| method | held-out loss | against Streaming | finding |\n"
        "| :--- | ---: | ---: | :--- |\n"
        "| decoupled, K = 1 \\| grace | 1.734 ± 0.006 | +0.12 % (-0.05..+0.29) | as good |\n"
        "| [bold]streaming | 11.731 ± 0.004 | - | the yardstick, which waits for all the others |\n\n"
        "Five seeds.\n\nSame data.\n"
    )


def test_a_table_without_rows_has_its_head():
    empty = Table(title="t", columns=("a", "b"), rows=())
    assert markdown(empty) == "**t**\n\n| a | b |\n| :--- | :--- |\n"
    assert printed(render(empty))[1].split() == ["a", "b"]


def test_a_row_of_another_length_is_a_bug():
    with pytest.raises(ValueError, match="argument"):
        markdown(Table(title="t", columns=("a", "b"), rows=(("1",),)))


def test_a_claim_says_its_figure_with_interval_limit_and_seeds():
    assert sentence(CLAIM) == "Asynchrony is free: +0.12 % (-0.05..+0.29), limit +0.5 %, 5 seeds."


def test_a_change_carries_its_sign_whatever_the_figures_are():
    worse = replace(CLAIM, value=0.86, low=0.1, high=1.62, limit=23.06)
    assert sentence(worse) == "Asynchrony is free: +0.86 % (+0.10..+1.62), limit +23.06 %, 5 seeds."


def test_figures_that_are_no_changes_carry_no_plus():
    share = replace(CLAIM, text="Share", value=48.7, low=-3.0, high=104.5, limit=50.0, is_change=False)
    assert sentence(share) == "Share: 48.7 % (-3.0..104.5), limit 50 %, 5 seeds."
    goodput = replace(share, text="Goodput", value=99.2, low=98.9, high=99.5, limit=99.0)
    assert sentence(goodput) == "Goodput: 99.20 % (98.90..99.50), limit 99 %, 5 seeds."
    large = replace(share, text="Time", value=1000.0, low=900.0, high=1100.0, limit=1200.0, unit="s")
    assert sentence(large) == "Time: 1000.0 s (900.0..1100.0), limit 1200 s, 5 seeds."
    curve = replace(share, text="Gap", value=2.0, low=1.0, high=3.0, limit=12.79781)
    assert sentence(curve) == "Gap: 2.00 % (1.00..3.00), limit 12.8 %, 5 seeds."
    small = replace(share, text="Ratio", value=0.012, low=0.011, high=0.013, limit=0.02, unit="")
    assert sentence(small) == "Ratio: 0.0120 (0.0110..0.0130), limit 0.02, 5 seeds."


def test_one_seed_and_no_finite_figure_are_said_in_words():
    one = replace(CLAIM, low=-math.inf, high=math.inf, seeds=1, verdict="not resolved", advice="Run 3.")
    assert sentence(one) == "Asynchrony is free: +0.12 %, limit +0.5 %, one seed. Run 3."
    none = replace(one, value=math.nan, seeds=2, verdict="fails", advice="It diverged.")
    assert sentence(none) == "Asynchrony is free: not finite, limit +0.5 %, 2 seeds. It diverged."


def test_the_verdict_comes_first_and_the_sentence_is_the_same_in_both():
    claims = [CLAIM, replace(CLAIM, verdict="not resolved", advice="It would take 9 seeds.")]
    shown = printed(render_claims(claims), 140)
    assert [line[:14].rstrip() for line in shown] == ["holds", "not resolved"]
    assert [line[14:] for line in shown] == [sentence(claim) for claim in claims]
    assert markdown_claims(claims) == (
        f"- **holds**: {sentence(claims[0])}\n- **not resolved**: {sentence(claims[1])}\n"
    )
    assert markdown_claims([]) == ""
