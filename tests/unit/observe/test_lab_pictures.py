"""Pictures of the lab show every point, say what they show, and are the same bytes for the same values."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atoll.errors import ConfigError
from atoll.observe.lab_pictures import draw
from atoll.observe.plot_style import GREY, ORDINARY
from atoll.sim.lab.report import Picture, Series

LINES = Picture(
    title="The gap shrinks with size",
    x_label="parameters",
    y_label="gap to Data-Parallel, %",
    log_x=True,
    series=(
        Series(name="M = 4", x=(5e4, 1e5, 2e5), y=(3.0, 2.0, 1.0), error=(0.3, 0.2, 0.1)),
        Series(name="published", x=(5e4, 1e5, 2e5), y=(4.0, 3.0, 2.5), is_reference=True),
    ),
)
BARS = Picture(
    title="Bits",
    kind="bars",
    x_label="codec",
    y_label="difference to bf16, %",
    names=("int8", "a codec with a name that is much too long for a single line", "2-bit"),
    zero_line=True,
    series=(Series(name="difference", x=(0, 1, 2), y=(-0.1, 0.25, 2.0), error=(0.1, 0.1, 0.3)),),
)


def drawn(picture: Picture, path: Path) -> str:
    draw(picture, path)
    return path.read_text(encoding="utf-8")


def words(svg: str) -> list[str]:
    """What is written: letters are outlines, and each text is named in a comment."""
    return [text.strip() for text in re.findall(r"<!-- (.*?) -->", svg, re.DOTALL)]


def with_y(picture: Picture, *y: float, **changes: Any) -> Picture:
    """The same picture with other values in its first series, which have no intervals."""
    series = replace(picture.series[0], y=y, error=())
    return replace(picture, series=(series, *picture.series[1:]), **changes)


@pytest.mark.parametrize("picture", [LINES, BARS], ids=["lines", "bars"])
@pytest.mark.parametrize("ending", ["svg", "png"])
def test_the_same_values_give_the_same_bytes(tmp_path, picture, ending):
    files = [tmp_path / f"{name}.{ending}" for name in "ab"]
    for file in files:
        draw(picture, file)
    first, second = (file.read_bytes() for file in files)
    assert first == second
    assert len(first) > 5_000


def test_lines_say_their_title_their_names_and_what_the_axes_are(tmp_path):
    said = words(drawn(LINES, tmp_path / "a.svg"))
    for text in ("The gap shrinks with size", "M = 4", "published", "parameters"):
        assert text in said
    assert "Gap to Data-Parallel, %. Thin lines: 95 % intervals." in said


def test_the_points_themselves_are_marked_on_the_axis(tmp_path):
    assert {"50k", "100k", "200k"} <= set(words(drawn(LINES, tmp_path / "a.svg")))


def test_points_too_close_to_be_read_leave_the_marks_to_the_axis(tmp_path):
    close = Series(name="close", x=(1.0, 1.001, 100.0), y=(1.0, 2.0, 3.0))
    said = words(drawn(replace(LINES, series=(close,), log_x=False), tmp_path / "a.svg"))
    assert "1.001" not in said
    assert {"20", "40", "60", "80"} <= set(said)


def test_a_reference_is_grey_and_dashed_and_the_others_are_neither(tmp_path):
    svg = drawn(LINES, tmp_path / "a.svg")
    paths = re.findall(r'style="fill: none; ([^"]*)"', svg)
    of_reference = [one for one in paths if "stroke-dasharray" in one]
    assert of_reference
    assert all(GREY in one for one in of_reference)
    assert any(ORDINARY[0] in one and "dasharray" not in one for one in paths)


def test_lines_are_named_at_the_right_no_two_names_share_a_place_and_a_far_end_is_led_there(tmp_path):
    def place(name: str) -> tuple[float, float]:
        found = re.search(rf"<!-- {name} -->\s*<g[^>]*translate\(([\d.]+) ([\d.]+)\)", svg)
        assert found, name
        return float(found[1]), float(found[2])

    early = Series(name="early", x=(5e4, 6e4), y=(4.0, 3.5))
    twin = replace(LINES.series[0], name="twin")
    svg = drawn(replace(LINES, series=(*LINES.series, twin, early)), tmp_path / "a.svg")
    assert place("M = 4")[0] == place("twin")[0] == place("published")[0] == place("early")[0]
    without = drawn(replace(LINES, series=(*LINES.series, twin)), tmp_path / "b.svg")
    dots = "stroke-dasharray: 0.9,1.485"
    assert (svg.count(dots), without.count(dots)) == (1, 0)
    assert abs(place("M = 4")[1] - place("twin")[1]) > 9  # points: the height of a line


def test_intervals_are_only_spoken_of_where_there_are_some(tmp_path):
    for error in ((), (math.inf,) * 3, (math.nan,) * 3):
        first = replace(LINES.series[0], error=error)
        said = words(drawn(replace(LINES, series=(first,)), tmp_path / "a.svg"))
        assert "Gap to Data-Parallel, %." in said


def test_a_log_axis_with_a_value_below_zero_is_linear_so_that_nothing_is_lost(tmp_path):
    positive = words(drawn(replace(LINES, log_y=True), tmp_path / "a.svg"))
    mixed = words(drawn(with_y(LINES, 3.0, 1.0, -1.0, log_y=True), tmp_path / "b.svg"))
    assert {"1", "2"} <= set(positive)
    assert "−1" in mixed


def test_a_point_that_is_not_finite_is_a_cross_and_is_explained(tmp_path):
    assert "Crosses" not in drawn(LINES, tmp_path / "a.svg")
    for bad in (math.nan, math.inf):
        said = words(drawn(with_y(LINES, 3.0, 2.0, bad), tmp_path / "b.svg"))
        assert "Gap to Data-Parallel, %. Crosses: not finite." in said
    draw(with_y(LINES, math.nan, math.nan, math.nan), tmp_path / "c.svg")


def test_every_bar_has_its_name_and_its_figure_with_a_sign(tmp_path):
    said = words(drawn(BARS, tmp_path / "a.svg"))
    for text in ("int8", "2-bit", "codec", "difference to bf16, %", "-0.10", "+0.25", "+2.00"):
        assert text in said
    assert "a codec with a name that is much" in said  # a long name is broken into lines
    assert "Thin lines: 95 % intervals." in said


def test_a_bar_that_is_not_finite_says_so(tmp_path):
    said = words(drawn(with_y(BARS, 0.1, math.nan, 2.0), tmp_path / "a.svg"))
    assert "not finite" in said
    assert "not finite" in words(drawn(with_y(BARS, *[math.inf] * 3), tmp_path / "b.svg"))


def test_figures_that_hardly_differ_are_dots_on_an_axis_of_their_own(tmp_path):
    close = with_y(BARS, 1.734, 1.741, 1.729, zero_line=False)
    said = words(drawn(close, tmp_path / "a.svg"))
    assert {"1.734", "1.741", "1.729"} <= set(said)
    zeros = {"0", "0.0", "0.00"}
    assert not zeros & set(said)
    assert zeros & set(words(drawn(replace(close, zero_line=True), tmp_path / "b.svg")))


def test_bars_on_a_log_axis_are_dots(tmp_path):
    said = words(drawn(with_y(BARS, 10.0, 100.0, 1000.0, zero_line=False, log_y=True), tmp_path / "a.svg"))
    assert {"10", "100", "1k"} <= set(said)


def test_several_series_of_bars_have_a_key_and_one_has_none(tmp_path):
    assert "difference" not in words(drawn(BARS, tmp_path / "a.svg"))
    published = Series(name="published", x=(2,), y=(1.5,), is_reference=True)
    svg = drawn(replace(BARS, series=(*BARS.series, published)), tmp_path / "b.svg")
    assert {"difference", "published", "+1.50"} <= set(words(svg))
    assert "stroke-dasharray" in svg


def test_more_bars_make_a_taller_picture(tmp_path):
    def height(num: int) -> float:
        series = Series(name="s", x=tuple(range(num)), y=tuple(1.0 + i for i in range(num)))
        names = tuple(f"name {i}" for i in range(num))
        svg = drawn(replace(BARS, names=names, series=(series,)), tmp_path / f"{num}.svg")
        found = re.search(r'viewBox="0 0 [\d.]+ ([\d.]+)"', svg)
        assert found
        return float(found[1])

    assert height(1) < height(3) < height(12)


def test_more_series_than_colours_are_told_apart_by_their_marks(tmp_path):
    many = tuple(
        Series(name=f"line {i}", x=(1.0, 2.0), y=(1.0 + i, 2.0 + i)) for i in range(len(ORDINARY) + 1)
    )
    svg = drawn(replace(LINES, series=many), tmp_path / "a.svg")
    assert {series.name for series in many} <= set(words(svg))

    def num_marks(svg: str) -> int:
        return len(set(re.findall(r'<path id="m\w+" d="([^"]*)"', svg)))

    assert num_marks(svg) == num_marks(drawn(replace(LINES, series=many[:-1]), tmp_path / "b.svg")) + 1


def test_a_picture_without_points_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="has no points"):
        draw(replace(LINES, series=()), tmp_path / "a.svg")
    with pytest.raises(ConfigError, match="has no points"):
        draw(replace(LINES, series=(Series(name="s", x=(), y=()),)), tmp_path / "a.svg")


def test_matplotlib_is_not_imported_before_something_is_drawn():
    code = (
        "import sys, atoll.observe.lab_pictures; sys.exit(bool({'matplotlib', 'torch'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
