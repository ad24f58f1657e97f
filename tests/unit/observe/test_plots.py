"""Pictures: what they say is what the figures say, and the same figures give the same bytes."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from atoll.errors import ConfigError
from atoll.observe.plot_style import spread
from atoll.observe.plot_timeline import rasterise
from atoll.observe.plots import plot_goodput, plot_timeline, plot_utilisation
from atoll.sim.fleet.delay import Delay
from atoll.sim.fleet.model import Pauses, Shock, even_fleet
from atoll.sim.fleet.result import SHARES, FleetResult
from atoll.sim.fleet.trace import CapacityTrace
from atoll.sim.units import DAY, HOUR, YEAR

CURVES = {
    "data-parallel, 16 bits": [(1e9, 0.1), (1e10, 0.5), (1e11, 0.9), (1e12, 1.0)],
    "streaming, 16 bits": [(1e9, 0.5), (1e10, 0.9), (1e11, 1.0)],
    "streaming, 4 bits": [(1e9, 0.9 - 1e-9), (2e9, 1.0)],
}


def result(chips: int, learners: int, goodput: float, *, elastic: bool = True, mtbi_s: float = YEAR):
    shares = dict.fromkeys(SHARES, 0.0) | {"useful": goodput, "shrinking": 1 - goodput}
    return FleetResult(
        fleet=even_fleet(chips, learners, mtbi_s=mtbi_s, pauses=Pauses(elastic=elastic)),
        horizon_s=30 * DAY,
        repetitions=64,
        seed=7,
        goodput=goodput,
        stderr=0.001,
        uptime=(1.0,) * (learners + 1),
        uptime_stderr=(0.0,) * (learners + 1),
        merging=1.0,
        participation=1.0,
        shares=shares,
        samples=(goodput,),
        learner_goodput=(goodput,) * learners,
        work=goodput * chips,
        num_failures=1.0,
        num_events=1,
        traces={},
    )


def some_results() -> list[FleetResult]:
    return [
        result(150_000, 1, 0.71, elastic=False),
        result(2_400_000, 1, 0.17, elastic=False),
        result(150_000, 1, 0.87),
        result(2_400_000, 1, 0.41),
        result(150_000, 16, 0.99),
        result(2_400_000, 16, 0.84),
    ]


def a_week() -> tuple[dict[str, CapacityTrace], dict[str, float]]:
    """Two learners: one stands still for 30 s every hour, the other is dark for the third day."""
    times, chips = [0.0], [100.0]
    for hour in range(7 * 24):
        times += [hour * HOUR + 600, hour * HOUR + 630]
        chips += [0.0, 100.0]
    restless = CapacityTrace(tuple(times), tuple(chips))
    dark = CapacityTrace((0.0, 2 * DAY, 3 * DAY), (300.0, 0.0, 300.0))
    return {"restless": restless, "dark": dark}, {"restless": 100.0, "dark": 300.0}


def words(path: Path) -> list[str]:
    """What is written in an SVG: letters are outlines, and each text is named in a comment."""
    return re.findall(r"<!-- (.*?) -->", path.read_text(encoding="utf-8"), re.DOTALL)


def test_the_goodput_picture_says_who_keeps_most_and_who_least_of_the_elastic_ones(tmp_path):
    plot_goodput(some_results(), tmp_path / "a.svg")
    written = words(tmp_path / "a.svg")
    assert (
        "On 2.4M chips, time well spent: 84 % with 16 learners; 41 % with Data-Parallel, elastic" in written
    )
    assert {"150k", "2.4M", "16 learners", "17 %", "shrinking"} <= set(written)
    assert "growing" not in written  # nobody grew, so no colour needs a name


def test_published_values_are_marked_only_beside_the_fleets_of_the_paper(tmp_path):
    plot_goodput(some_results(), tmp_path / "paper.svg")
    plot_goodput([result(150_000, 2, 0.9, mtbi_s=YEAR / 2), result(300_000, 2, 0.8)], tmp_path / "half.svg")
    struck = replace(
        even_fleet(300_000, 2),
        shocks=(Shock(name="site", every_s=DAY, share=1.0, returns=Delay(mean_s=HOUR)),),
    )
    others = [replace(result(300_000, 2, 0.8), fleet=struck), result(777_000, 2, 0.7)]
    plot_goodput(others, tmp_path / "ours.svg")
    slower = Pauses(down_s=60.0)
    slow = [
        replace(result(chips, 2, 0.8), fleet=even_fleet(chips, 2, pauses=slower))
        for chips in (150_000, 300_000)
    ]
    plot_goodput(slow, tmp_path / "slow.svg")
    marks = {
        name: sum("Open marks: published" in word for word in words(tmp_path / f"{name}.svg"))
        for name in ("paper", "half", "ours", "slow")
    }
    assert marks == {"paper": 1, "half": 1, "ours": 0, "slow": 0}


def test_one_number_of_chips_is_drawn_without_lines(tmp_path):
    plot_goodput([result(600_000, 8, 0.94)], tmp_path / "a.svg")
    written = words(tmp_path / "a.svg")
    assert "On 600k chips, time well spent: 94 % with 8 learners" in written
    assert "Goodput: share of chip time in useful steps" not in written


def test_the_utilisation_picture_names_each_line_with_what_it_needs(tmp_path):
    plot_utilisation(CURVES, tmp_path / "a.svg")
    written = " ".join(words(tmp_path / "a.svg")).replace("\n", " ")
    assert "takes 100 Gbit/s with data-parallel, 16 bits, 1 Gbit/s with streaming, 4 bits" in written
    assert "10 Gbit/s" in written


def test_a_method_that_never_waits_is_said_to_need_nothing(tmp_path):
    curves = {
        **CURVES,
        "decoupled, 16 bits": [(1e9, 1.0), (1e12, 1.0)],
        "hopeless": [(1e9, 0.0), (1e12, 0.1)],
    }
    plot_utilisation(curves, tmp_path / "a.svg")
    written = words(tmp_path / "a.svg")
    title = "Computing 90 % of the time takes 100 Gbit/s with data-parallel, 16 bits; decoupled never waits"
    assert {title, "decoupled, 16 bits: never waits", "hopeless"} <= set(written)


def test_a_line_that_begins_high_is_named_with_where_it_begins(tmp_path):
    plot_utilisation({**CURVES, "decoupled": [(3e9, 1.0), (1e12, 1.0)]}, tmp_path / "a.svg")
    written = " ".join(words(tmp_path / "a.svg"))
    assert "≥ 3 Gbit/s" in written
    assert "decoupled: never waits" not in written


@pytest.mark.parametrize(
    ("curve", "title"),
    [
        ([(1e9, 1.0), (1e12, 1.0)], "decoupled never waits"),
        ([(1e9, 0.0), (1e12, 0.1)], "Nothing reaches 90 %"),
    ],
)
def test_curves_without_a_crossing_still_make_a_picture(tmp_path, curve, title):
    plot_utilisation({"decoupled": curve}, tmp_path / "a.svg")
    assert any(word.startswith(title) for word in words(tmp_path / "a.svg"))


def test_the_timeline_shows_the_week_the_pauses_and_the_worst_hour(tmp_path):
    traces, full = a_week()
    plot_timeline(traces, 7 * DAY, tmp_path / "a.svg", full)
    written = words(tmp_path / "a.svg")
    # 300 of 400 chips are dark for a day of seven, and 100 stand still for 30 s an hour: 0.892 remain.
    assert "A week: 89 % of the chips at work, 24 % in the worst 14 min" in written
    assert {"restless", "dark", "168", "1", "86 %", "99 %", "days", "minutes"} <= set(written)
    assert any(word.startswith("One hour of it, after ") for word in written)


def test_a_short_timeline_is_shown_once(tmp_path):
    traces, full = a_week()
    plot_timeline(traces, 2 * HOUR, tmp_path / "a.svg", full)
    assert not any(word.startswith("One hour of it") for word in words(tmp_path / "a.svg"))


def test_a_fleet_of_hundreds_of_learners_still_fits(tmp_path):
    traces, _ = a_week()
    many = {f"learner-{m}": traces["restless"] for m in range(300)}
    plot_timeline(many, 7 * DAY, tmp_path / "a.svg", dict.fromkeys(many, 100.0))
    written = words(tmp_path / "a.svg")
    assert {"learner-0", "learner-299"} <= set(written)
    assert "learner-7" not in written


def test_columns_hold_exact_means_of_what_lies_in_them():
    traces = {"a": CapacityTrace((0.0, 5.0, 15.0), (4.0, 0.0, 2.0)), "b": CapacityTrace((12.0,), (8.0,))}
    raster = rasterise(traces, {"a": 4.0, "b": 8.0}, 0.0, 20.0, num_columns=2)
    assert raster.share.tolist() == [[0.5, 0.25], [1.0, 1.0]]
    assert raster.stopped.tolist() == [[0.5, 0.5], [0.0, 0.0]]
    assert raster.fleet.tolist() == pytest.approx([10 / 12, 9 / 12])
    assert raster.num_stops == (1, 0)


def test_no_change_is_lost_between_columns():
    traces, full = a_week()
    for num_columns in (1, 7, 720):
        raster = rasterise(traces, full, 0.0, 7 * DAY, num_columns)
        means = raster.share.mean(axis=1) * [full[name] for name in traces]
        assert means == pytest.approx([trace.mean(7 * DAY) for trace in traces.values()])
        assert raster.num_stops == (168, 1)


def test_a_part_of_the_span_counts_only_the_stops_that_begin_in_it():
    traces, full = a_week()
    raster = rasterise(traces, full, 2.5 * DAY, 2.5 * DAY + HOUR)
    assert raster.num_stops == (1, 0)
    assert raster.stopped[1].min() == 1.0


@pytest.mark.parametrize("ending", [".svg", ".png"])
def test_the_same_figures_give_the_same_bytes(tmp_path, ending):
    traces, full = a_week()
    for name in ("first", "second"):
        plot_goodput(some_results(), tmp_path / f"goodput-{name}{ending}")
        plot_utilisation(CURVES, tmp_path / f"utilisation-{name}{ending}")
        plot_timeline(traces, 7 * DAY, tmp_path / f"timeline-{name}{ending}", full)
    for kind in ("goodput", "utilisation", "timeline"):
        first, second = (tmp_path / f"{kind}-{name}{ending}" for name in ("first", "second"))
        assert first.read_bytes() == second.read_bytes()
        assert first.stat().st_size > 5000


def test_labels_keep_their_order_and_their_distance():
    places = spread([0.5, 0.9, 0.52, 0.51, 0.0], 0.1, 0.0, 1.0)
    assert sorted(range(5), key=lambda i: places[i]) == [4, 0, 3, 2, 1]
    assert np.diff(sorted(places)).min() >= 0.1 - 1e-12
    assert places[1] == 0.9  # who has room stays where it is
    assert min(places) >= 0.0
    assert max(places) <= 1.0


def test_labels_that_cannot_all_fit_are_packed_evenly():
    assert spread([0.5] * 5, 0.4, 0.0, 1.0) == pytest.approx([0.0, 0.25, 0.5, 0.75, 1.0])
    assert spread([], 0.1, 0.0, 1.0) == []


def test_labels_pushed_against_an_edge_stay_inside():
    places = spread([0.99, 1.0, 0.97], 0.1, 0.0, 1.0)
    assert places == pytest.approx([0.9, 1.0, 0.8])


@pytest.mark.parametrize("name", ["picture.pdf", "picture"])
def test_other_endings_are_refused_with_the_known_ones(tmp_path, name):
    with pytest.raises(ConfigError, match=r"\.svg or \.png"):
        plot_goodput(some_results(), tmp_path / name)


def test_nothing_to_draw_is_refused(tmp_path):
    traces, full = a_week()
    for draw in (
        lambda: plot_goodput([], tmp_path / "a.svg"),
        lambda: plot_utilisation({"none": []}, tmp_path / "a.svg"),
        lambda: plot_timeline({}, DAY, tmp_path / "a.svg", full),
        lambda: plot_timeline(traces, 0.0, tmp_path / "a.svg", full),
    ):
        with pytest.raises(ConfigError, match="would be empty"):
            draw()
    with pytest.raises(ConfigError, match="how many chips dark has"):
        plot_timeline(traces, DAY, tmp_path / "a.svg", {"restless": 100.0})
    assert not (tmp_path / "a.svg").exists()


def test_a_directory_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere/a\.svg cannot be written"):
        plot_utilisation(CURVES, tmp_path / "nowhere" / "a.svg")


def test_without_matplotlib_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=re.escape("pip install 'atoll[plots]'")):
        plot_utilisation(CURVES, tmp_path / "a.svg")


def test_matplotlib_is_imported_only_to_draw_and_keeps_its_settings(tmp_path):
    code = (
        "import sys, pathlib\n"
        "from atoll.observe import plots\n"
        "assert 'matplotlib' not in sys.modules\n"
        "import matplotlib\n"
        "def settings():\n"  # to ask for the backend would choose one, and import pyplot for it
        "    return {key: matplotlib.rcParams[key] for key in matplotlib.rcParams if 'backend' not in key}\n"
        "before = settings()\n"
        "plots.plot_utilisation({'a': [(1e9, .1), (1e10, 1.)]}, pathlib.Path(sys.argv[1]))\n"
        "assert 'matplotlib.pyplot' not in sys.modules and 'torch' not in sys.modules\n"
        "assert settings() == before\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "a.svg")], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
