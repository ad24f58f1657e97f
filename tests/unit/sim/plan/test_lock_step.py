"""Lock-step on the same fleet, and arithmetic that adds up to the figure that is printed."""

from __future__ import annotations

import pytest

from atoll.sim.plan.fleet_file import parse_fleet
from atoll.sim.plan.plan import make_plan
from tests.unit.sim.plan.fleets import fleet, four, island, text


@pytest.fixture(scope="module")
def plan():
    return make_plan(four(up="2Gbit/s"))


def test_each_line_follows_from_those_above_it(plan):
    values = {line.what: line.value for line in plan.lines}
    payload, wire_s, compute_s, step_s, rate, time_s, ours_s, times = values.values()
    model = plan.world.spec.model
    assert payload == pytest.approx(7e9 * 16 * 2 * (1 - 1 / 4))
    assert wire_s == pytest.approx(payload / 2e9)
    assert compute_s == pytest.approx(model.batch / plan.world.spec.rate)
    # The transfer begins with the backward pass, a third into the step; the ring adds three round trips.
    assert step_s == pytest.approx(compute_s / 3 + wire_s + 3 * 0.03)
    assert rate == pytest.approx(model.batch / step_s * plan.lock_step.goodput)
    assert time_s == pytest.approx(model.tokens / rate)
    assert ours_s == pytest.approx(plan.best.tokens / plan.best.crew.tokens_per_s)
    assert times == pytest.approx(time_s / ours_s)
    assert plan.times_faster == pytest.approx(times)


def test_what_is_shown_is_what_was_computed(plan):
    last = plan.lines[-1]
    assert float(last.shown) == pytest.approx(plan.times_faster, rel=0.006)
    assert plan.lines[0].shown == "168 Gbit"
    assert "7B x 16 bit x 1.5 (ring of 4)" in plan.lines[0].working


def test_each_number_is_shown_again_where_it_is_used(plan):
    shown = {line.what: line.shown for line in plan.lines}
    working = {line.what: line.working for line in plan.lines}
    payload, _, compute, step, rate, *_ = shown.values()
    assert working["over the slowest link"] == f"{payload} / 2 Gbit/s"
    assert working["with its link, from the backward pass on"].startswith(f"{compute} / ")
    tokens_per_s = working["lock-step tokens/s, with failures"]
    assert tokens_per_s == f"4M / {step} x goodput {plan.lock_step.goodput:.4g}"
    assert working["lock-step time"] == f"140B tokens / {rate}/s"
    assert working["times faster"] == f"{shown['lock-step time']} / {shown['Decoupled time, same loss']}"


def test_faster_links_help_lock_step_most():
    thin, fat = (make_plan(four(up=rate)) for rate in ("1Gbit/s", "400Gbit/s"))
    assert thin.times_faster > 20 > 3 > fat.times_faster


def test_mixed_chips_have_batches_by_speed_in_lock_step_too():
    even = make_plan(fleet(island("a", up="1Tbit/s", rtt="0s"), island("b", up="1Tbit/s", rtt="0s")))
    mixed = make_plan(
        fleet(island("a", up="1Tbit/s", rtt="0s"), island("b", flops="50T", up="1Tbit/s", rtt="0s"))
    )
    assert even.lock_step.tokens_per_s == pytest.approx(even.best.crew.tokens_per_s, rel=0.02)
    assert mixed.lock_step.tokens_per_s == pytest.approx(even.lock_step.tokens_per_s * 5 / 8, rel=0.02)
    assert mixed.lock_step.compute_s == pytest.approx(mixed.best.crew.step_s)
    assert mixed.lock_step.goodput > 0.99
    assert mixed.best.crew.tokens_per_s == pytest.approx(even.best.crew.tokens_per_s * 5 / 8, rel=0.02)


def test_a_market_that_withholds_fast_chips_withholds_their_tokens(tmp_path):
    (tmp_path / "spot.csv").write_text("time_s,learner,chips\n0,fast,64\n864000,fast,64\n")
    fast = {"trace": "spot.csv", "flops": "300T"}
    islands = (island("fast", mtbi="inf", **fast), island("slow", mtbi="inf", flops="100T"))
    plan = make_plan(parse_fleet(text(*islands), folder=tmp_path))
    assert plan.lock_step.goodput == pytest.approx((300 / 2 + 100) / 400, rel=0.01)


def test_lock_step_of_islands_that_are_not_elastic_is_not_elastic():
    goodputs = [
        make_plan(fleet(*(island(name, mtbi="2d", **words) for name in "ab"))).lock_step.goodput
        for words in ({}, {"elastic": False, "outage": "10min"})
    ]
    assert goodputs[1] < goodputs[0] - 0.1


def test_one_island_alone_needs_no_link():
    plan = make_plan(fleet(island("only", up="2Gbit/s")))
    assert plan.lock_step.utilisation == 1.0
    assert plan.lines[0].what.startswith("compute")
    assert plan.lock_step.alone_time_s == pytest.approx(plan.lock_step.time_s, rel=0.01)


def test_lock_step_may_leave_out_what_the_plan_leaves_out():
    plan = make_plan(fleet(island("a"), island("b"), island("modem", up="1Mbit/s")))
    assert plan.lock_step.islands == 2
    assert plan.lock_step.link_bits_per_s == 3e9
