"""Each choice moves the right way when the fleet changes, and what cannot be is refused."""

from __future__ import annotations

from functools import lru_cache

import pytest

from atoll.errors import ConfigError
from atoll.sim.plan.evaluate import CODECS, INTERVALS, Outcome, World, evaluate, muster
from atoll.sim.plan.explain import config_snippet, loses, reasons, why_worse, worth_in_words
from atoll.sim.plan.fleet_file import FleetSpec
from atoll.sim.plan.layouts import Share
from atoll.sim.plan.links import BITS
from atoll.sim.plan.pace import simulate_paces
from atoll.sim.plan.plan import SETTINGS, Plan, make_plan, used_of
from atoll.sim.plan.search import Search
from tests.unit.sim.plan.fleets import fleet, four, island


@lru_cache(maxsize=1)
def paces():
    return simulate_paces(four(), 1)


def best(spec: FleetSpec, **question: object):
    """The best candidate for four islands whose links and prices differ; they fail as usual."""
    return Search(World(spec, paces(), **question)).best()  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def usual() -> Plan:
    return make_plan(four())


def test_a_thinner_link_means_a_longer_interval_or_fewer_bits():
    load = []
    for rate in ("50Gbit/s", "3Gbit/s", "1Gbit/s", "300Mbit/s", "100Mbit/s"):
        chosen = best(four(up=rate)).candidate
        assert chosen.learners == 4
        load.append(BITS[chosen.codec] / chosen.interval)
    assert load == sorted(load, reverse=True)
    assert load[0] > 10 * load[-1]


def test_ample_links_give_the_settings_of_the_paper():
    chosen = best(four(up="50Gbit/s")).candidate
    assert (chosen.interval, chosen.fragments, chosen.overlap, chosen.codec) == (24, 24, 2, "bf16")


def test_a_longer_way_means_more_overlap_and_more_connections():
    near, far = (best(four(rtt=rtt)) for rtt in ("5ms", "60ms"))
    assert far.candidate.channels > near.candidate.channels
    overlaps = []
    for rtt in ("10ms", "100ms", "300ms"):  # a step takes 23 ms
        world = World(fleet(*(island(name, rtt=rtt) for name in "abcd"), params="100M"), paces())
        found = evaluate(world, muster(world, tuple(Share(n, 1, 1) for n in range(4))), 96, "int4")
        assert isinstance(found, Outcome), found
        overlaps.append(found.candidate.overlap)
    assert overlaps[0] == 2 < overlaps[1] < overlaps[2]


def test_merges_later_than_a_quarter_of_the_interval_are_stale_and_cost_tokens():
    world = World(fleet(*(island(name, rtt="300ms") for name in "abcd"), params="100M"), paces())
    crew = muster(world, tuple(Share(n, 1, 1) for n in range(4)))
    late, early = evaluate(world, crew, 48, "int4"), evaluate(world, crew, 192, "int4")
    assert isinstance(late, Outcome)
    assert isinstance(early, Outcome)
    assert (early.staleness, early.late) == (0, 0.0)
    assert late.candidate.overlap == 12
    assert late.staleness == late.way_steps - 12 > 0
    assert late.late > 0


def test_merges_that_would_overwrite_most_of_the_work_cannot_be():
    world = World(fleet(*(island(name, rtt="150ms") for name in "abcd"), params="100M"), paces())
    crew = muster(world, tuple(Share(n, 1, 1) for n in range(4)))
    assert "merges would come" in str(evaluate(world, crew, 12, "int4"))


def test_more_failures_mean_more_learners_and_a_smaller_quorum():
    found = {}
    for mtbi in ("100y", "1mo", "5d"):
        spec = fleet(island("a", chips=32768, slice=256, mtbi=mtbi, up="100Gbit/s", rtt="1ms"), batch="200M")
        found[mtbi] = Search(World(spec, simulate_paces(spec, 1))).best()
    learners = [outcome.candidate.learners for outcome in found.values()]
    assert learners == sorted(learners)
    assert learners[0] == 1 < learners[1] < learners[2]
    goodputs = [outcome.crew.goodput for outcome in found.values()]
    assert goodputs == sorted(goodputs, reverse=True)
    frail = found["5d"].candidate
    assert frail.quorum < frail.learners / 2


def test_an_island_behind_a_modem_is_not_worth_its_link():
    plan = make_plan(fleet(island("a"), island("b"), island("modem", up="56kbit/s")))
    assert used_of(plan.world.spec, plan.best) == (1, 1, 0)
    worths = {plan.world.spec.sites[worth.site].name: worth for worth in plan.worths}
    assert [name for name, worth in worths.items() if worth.is_worth] == ["a", "b"]
    assert "the link of modem would have to carry" in worth_in_words(plan, worths["modem"])
    assert "100.0 % more time" in worth_in_words(plan, worths["a"])


def test_a_dear_island_is_left_out_for_money_and_taken_for_time():
    spec = fleet(island("a"), island("b"), island("dear", price=9.0))
    found = simulate_paces(spec, 1)
    assert used_of(spec, Search(World(spec, found)).best()) == (1, 1, 1)
    assert used_of(spec, Search(World(spec, found, money=True)).best()) == (1, 1, 0)


def test_for_the_same_money_the_quicker_plan_is_chosen():
    """Two learners of 7B have no gap: two islands cost what one costs, and take half the time."""
    spec = fleet(island("a"), island("b"))
    chosen = Search(World(spec, simulate_paces(spec, 1), money=True)).best()
    assert used_of(spec, chosen) == (1, 1)


def test_an_island_that_adds_less_than_its_gap_costs_is_left_out():
    """The fifth learner costs all of them tokens; a tiny one does not make up for it."""
    spec = fleet(*(island(name) for name in "abcd"), island("tiny", chips=8))
    assert used_of(spec, Search(World(spec, simulate_paces(spec, 1))).best()) == (1, 1, 1, 1, 0)


def test_some_of_many_equal_islands_may_be_used():
    """With a million parameters more learners cost more tokens than they bring."""
    spec = fleet(island("a", count=8, flops="10G"), params="1M", batch="100k")
    assert used_of(spec, Search(World(spec, simulate_paces(spec, 1))).best()) == (1,)


def test_the_syncers_own_link_is_a_limit():
    free = best(four())
    tight = fleet(*(island(name) for name in "abcd"), more='[syncer]\nrate = "3Gbit/s"\n')
    held = best(tight)
    assert free.syncer_bits_per_s / 2 > 3e9 >= held.syncer_bits_per_s / 2
    assert held.time_s > free.time_s


def test_a_small_model_has_fewer_fragments_than_steps_in_its_interval():
    spec = fleet(island("a", flops="1G"), island("b", flops="1G"), params="6M", batch="100k")
    chosen = Search(World(spec, simulate_paces(spec, 1))).best().candidate
    assert chosen.fragments == 6
    assert chosen.interval % chosen.fragments == 0


def test_learners_of_one_island_share_its_link():
    spec = four()
    world = World(spec, paces())
    whole, halves = (muster(world, tuple(Share(n, 1, parts) for n in range(4))) for parts in (1, 2))
    one, two = (evaluate(world, crew, 96, "int8") for crew in (whole, halves))
    assert two.links[0].needed_bits_per_s == pytest.approx(2 * one.links[0].needed_bits_per_s)  # type: ignore[union-attr]
    assert two.way_steps >= one.way_steps  # type: ignore[union-attr]


def test_time_is_tokens_over_pace_and_cost_is_time_at_its_price(usual):
    outcome = usual.best
    assert outcome.time_s == pytest.approx(outcome.tokens / outcome.crew.tokens_per_s)
    assert outcome.cost == pytest.approx(outcome.time_s / 3600 * 4 * 128 * 2.0)
    need = 7e9 * BITS[outcome.candidate.codec] / (outcome.candidate.interval * outcome.crew.step_s)
    assert outcome.links[0].needed_bits_per_s == pytest.approx(need)


def test_the_climb_finds_what_trying_everything_finds(usual):
    world = usual.world
    search = Search(world)
    found = search.best()
    everything = [
        search.best_with((a, b, c, d)) for a in (0, 1) for b in (0, 1) for c in (0, 1) for d in (0, 1)
    ][1:]
    assert found.score <= min(outcome.score for outcome in everything) * 1.005  # type: ignore[union-attr]


def test_the_five_best_begin_with_the_best_and_lose_ever_more(usual):
    assert usual.five[0] is usual.best
    assert len(usual.five) == 5
    lost = [loses(usual.best, outcome) for outcome in usual.five]
    assert lost == sorted(lost)
    for outcome in usual.five[1:]:
        assert "%" in why_worse(usual.world, usual.best, outcome)


def test_every_choice_has_a_sentence(usual):
    sentences = reasons(usual)
    assert list(sentences) == list(SETTINGS.values())
    for sentence in sentences.values():
        assert sentence.endswith(".")
        assert len(sentence) > 20


def test_each_change_of_an_input_is_planned_anew(usual):
    changes = {change.what: change for change in usual.changes}
    assert "links half as fast" in changes
    thin, fat = changes["links half as fast"], changes["links twice as fast"]
    assert thin.best.time_s >= usual.best.time_s >= fat.best.time_s * 0.995
    assert any(flip.startswith(("codec", "H")) for flip in thin.flips)
    larger = changes["gap to lock-step larger by its uncertainty"]
    assert larger.best.time_s > usual.best.time_s
    assert changes["ten times as many failures"].best.crew.goodput < usual.best.crew.goodput
    low, high = usual.time_range_s
    assert low < usual.best.time_s < high


def test_the_config_has_every_setting(usual):
    snippet = config_snippet(usual)
    assert f"interval_steps = {usual.best.candidate.interval}" in snippet
    assert f'up = "{usual.best.candidate.codec}"' in snippet


def test_a_fleet_on_which_nothing_works_is_refused_with_the_reason():
    with pytest.raises(ConfigError) as refusal:
        make_plan(fleet(island("a", up="1kbit/s"), island("b", up="2kbit/s")))
    assert "the link of a would have to carry" in refusal.value.what
    assert str(INTERVALS[-1]) in refusal.value.so_what
    assert CODECS[-1] in refusal.value.so_what


def test_money_needs_prices():
    with pytest.raises(ConfigError, match="island b has no price"):
        make_plan(fleet(island("a"), island("b", price=None)), money=True)
