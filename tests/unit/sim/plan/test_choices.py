"""Each choice moves the right way when the fleet changes, and what cannot be is refused."""

from __future__ import annotations

from functools import lru_cache

import pytest

from atoll.errors import ConfigError
from atoll.sim.plan.answer import as_json
from atoll.sim.plan.evaluate import Outcome, World, evaluate, muster
from atoll.sim.plan.explain import config_snippet, loses, percent, reasons, why_worse, worth_in_words
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
    more = '[[shock]]\nname = "x"\nevery = "1s"\nshare = 1.0\nreturns = "1y"\n'
    with pytest.raises(ConfigError, match="even with a alone no learner ever steps"):
        make_plan(fleet(island("a"), island("b"), more=more))


def test_islands_without_a_usable_link_train_alone_and_need_no_syncer():
    plan = make_plan(fleet(island("a", up="1kbit/s"), island("b", up="2kbit/s", flops="300T")))
    assert plan.best.candidate.is_alone
    assert used_of(plan.world.spec, plan.best) == (0, 1)
    assert "the link of a would have to carry" in worth_in_words(plan, plan.worths[0])
    assert list(reasons(plan)) == ["M"]
    assert "train on b alone, no syncer needed" in reasons(plan)["M"]


def test_one_learner_alone_costs_what_its_island_costs_and_nothing_more():
    """Two learners of 7B have no gap, but a syncer: its price decides for one island without it."""
    islands = (island("a"), island("b", price=2.01))
    plan = make_plan(fleet(*islands, more="[syncer]\nprice = 50\n"), money=True)
    assert plan.best.candidate.is_alone
    assert plan.best.cost == pytest.approx(plan.lock_step.alone_cost)
    assert plan.best.cost == pytest.approx(plan.best.time_s / 3600 * 128 * 2.0)
    assert (plan.best.tokens, plan.best.links, plan.best.staleness) == (plan.world.spec.model.tokens, (), 0)
    by_time = next(change for change in plan.changes if change.what == "minimise time instead of money")
    assert {"takes in b", "M 1 to 2", "with a syncer"} <= set(by_time.flips)
    assert not any("None" in flip or "none" in flip for flip in by_time.flips)


SITE_SHOCK = '[[shock]]\nname = "site"\nevery = "10d"\nshare = 1.0\nreturns = "1d"\n'


def test_learners_of_one_island_are_dark_together():
    spec = fleet(island("a", chips=256, mtbi="inf"), more=SITE_SHOCK)
    world = World(spec, simulate_paces(spec, 1))
    for parts in (1, 2, 4):
        crew = muster(world, (Share(0, 1, parts),))
        assert crew.uptimes[1] == pytest.approx(10 / 11, abs=1e-3)
        assert crew.uptimes[parts] == pytest.approx(crew.uptimes[1])
        assert crew.quorum == -(-parts // 2)


def test_every_uptime_of_an_answer_is_the_same_figure():
    """An island that fails often is split, and its site goes dark all the same."""
    frail = island("a", chips=32768, slice=256, mtbi="5d", up="100Gbit/s", rtt="1ms")
    plan = make_plan(fleet(frail, batch="200M", more=SITE_SHOCK))
    answer = as_json(plan)
    expected = answer["expected"]
    assert plan.best.candidate.learners > 1
    assert 0.8 < expected["uptime"] < 10 / 11
    assert f"step {percent(expected['uptime_quorum'], 2)} of the time" in answer["reasons"]["K"]
    assert expected["merging"] == expected["uptime_quorum"]
    assert answer["candidates"][0]["uptime"] == expected["uptime"]


def test_the_syncers_outages_are_time_without_merges():
    spec = fleet(island("a"), island("b"), more='[syncer]\noutage_every = "9h"\noutage = "1h"\n')
    crew = muster(World(spec, simulate_paces(spec, 1)), (Share(0, 1, 1), Share(1, 1, 1)))
    assert crew.merging == pytest.approx(0.9 * crew.uptimes[crew.quorum])


def test_at_low_uptimes_no_quorum_is_said_to_cost_nothing():
    more = '[[shock]]\nname = "site"\nevery = "1d"\nshare = 1.0\nreturns = "10d"\n'
    plan = make_plan(fleet(island("a"), island("b"), more=more))
    assert plan.best.candidate.learners == 2
    uptimes = plan.best.crew.uptimes
    assert uptimes[1] == pytest.approx(1 - (10 / 11) ** 2, abs=2e-3)
    sentence = reasons(plan)["K"]
    assert f"1 or more learners step {percent(uptimes[1], 2)} of the time" in sentence
    assert "nothing" not in sentence


def test_a_quorum_is_measured_by_the_time_in_which_any_step():
    """Any of four step 0.05 % of the time: two of them are missed for most of it, however little that is."""
    more = '[[shock]]\nname = "site"\nevery = "1h"\nshare = 1.0\nreturns = "1y"\n'
    spec = fleet(*(island(name, mtbi="inf", shrink="0s", grow="0s") for name in "abcd"), more=more)
    crew = muster(World(spec, simulate_paces(spec, 1)), tuple(Share(n, 1, 1) for n in range(4)))
    assert 0 < crew.uptimes[1] < 0.001
    assert crew.quorum == 1


def test_an_island_that_is_not_elastic_loses_more_to_each_failure():
    goodputs = []
    for words in ({}, {"elastic": False}, {"elastic": False, "outage": "10min"}):
        spec = fleet(island("a", chips=1024, mtbi="30d", **words))
        goodputs.append(muster(World(spec, simulate_paces(spec, 1)), (Share(0, 1, 1),)).goodput)
    assert goodputs == sorted(goodputs, reverse=True)
    # A failure every 42 minutes of running, and ten minutes until it runs again.
    assert goodputs[2] == pytest.approx(42.2 / 52.2, abs=0.02)


def test_money_needs_prices():
    with pytest.raises(ConfigError, match="island b has no price"):
        make_plan(fleet(island("a"), island("b", price=None)), money=True)
