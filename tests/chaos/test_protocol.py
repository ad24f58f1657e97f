"""Seeds against the core: safety under faults, then liveness. The long run is a command:

atoll simulate protocol --seeds 10000
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from atoll.core.commands import Note
from atoll.core.params import RunParams
from atoll.core.records import RoundRecord
from atoll.sim.faults import KINDS, PHASES
from atoll.sim.protocol import run_scenario, run_seed, run_seeds, shrink, summarize
from atoll.sim.story import account, narrate
from atoll.sim.world import MIN_MERGES, STEP_NS, World, draw_scenario
from atoll.tape.entries import Stored
from atoll.tape.replay import replay
from tests.chaos.bugs import BUGS

NUM_SEEDS = 240


def cut(params: RunParams, num_fragments: int) -> RunParams:
    """The same run with fewer fragments."""
    return replace(
        params,
        num_fragments=num_fragments,
        fragment_bytes=params.fragment_bytes[:num_fragments],
        publish_bytes=params.publish_bytes[:num_fragments],
        full_bytes=params.full_bytes[:num_fragments],
    )


@pytest.fixture(scope="module")
def summary():
    return summarize(run_seeds(range(1, NUM_SEEDS + 1), jobs=2))


def test_no_seed_breaks_an_invariant(summary):
    assert [f"seed {f.seed}: {f.violations[0]}" for f in summary.failures] == []
    assert summary.seeds == NUM_SEEDS


def test_every_invariant_is_really_checked(summary):
    assert set(summary.checks) == {f"I{n}" for n in range(1, 15)}
    assert min(summary.checks.values()) > NUM_SEEDS / 10


def test_seeds_are_rough_and_long_enough(summary):
    assert sum(summary.struck.values()) / NUM_SEEDS >= 20
    assert summary.min_merges >= MIN_MERGES
    assert {kind for kind, _ in summary.struck} == set(KINDS)
    assert {phase for _, phase in summary.struck} == set(PHASES)


def test_results_do_not_depend_on_the_number_of_processes(summary):
    few = list(run_seeds(range(1, 9), jobs=1))
    assert summarize(few).digest == summarize(run_seeds(range(1, 9), jobs=2)).digest


def test_the_same_seed_gives_the_same_tape_twice_and_another_seed_another():
    assert run_seed(3) == run_seed(3)
    assert run_seed(3).digest != run_seed(4).digest


@pytest.mark.parametrize("seed", [100, 200, 300])
def test_real_tensors_go_the_same_way(seed):
    scenario = draw_scenario(seed)
    assert scenario.tensors
    world, checker = run_scenario(scenario)
    assert not checker.violations
    again = World(scenario)
    again.run()
    assert again.tape.digest() == world.tape.digest()


@pytest.mark.parametrize("seed", [5, 6, 100])
def test_a_tape_replays_to_the_same_commands(seed):
    world, _ = run_scenario(draw_scenario(seed))
    result = replay(world.tape, world.scenario.params)
    assert result.ok, result.problems
    assert result.num_commands > 1000


def test_replay_notices_other_decisions():
    world, _ = run_scenario(draw_scenario(5))
    params = replace(world.scenario.params, min_quorum=world.scenario.params.min_quorum + 1)
    assert not replay(world.tape, params).ok


@pytest.mark.parametrize("adopt", ["overwrite", "blend", "rebase"])
def test_every_token_is_accounted_for(adopt):
    drawn = draw_scenario(11)
    world, checker = run_scenario(replace(drawn, params=replace(drawn.params, adopt=adopt)))
    assert not checker.violations
    books = account(world.tape, drawn.params.num_fragments)
    for book in books:
        parts = book.merged + book.overwritten + book.dropped + book.lost + book.open
        assert parts == book.trained
    assert sum(book.merged for book in books) > 0


def test_decoupled_never_holds_a_learner_and_the_baselines_do():
    drawn = draw_scenario(1, faults=False)
    held = {}
    for algorithm in ("decoupled", "streaming", "diloco"):
        params = replace(cut(drawn.params, 2), algorithm=algorithm, interval_steps=8)
        world, checker = run_scenario(replace(drawn, params=params))
        assert not checker.violations
        names = [type(entry.item).__name__ for entry in world.tape]
        held[algorithm] = names.count("Hold")
    assert held["decoupled"] == 0
    assert min(held["streaming"], held["diloco"]) > 0


@pytest.mark.parametrize("budget", [{"budget_ticks": 40}, {"budget_tokens": 2000}])
def test_a_spent_budget_finishes_the_run_under_faults(budget):
    for seed in range(1, 9):
        drawn = draw_scenario(seed, tensors=False)
        world, checker = run_scenario(replace(drawn, params=replace(drawn.params, **budget)))
        assert not checker.violations
        notes = [e.item.reason for e in world.tape if isinstance(e.item, Note) and e.item.kind == "drain"]
        assert any(reason.startswith("budget of") for reason in notes)
        assert world.is_finished()


@pytest.mark.parametrize("pace", [6, 10, 20])
@pytest.mark.parametrize("algorithm", ["decoupled", "streaming"])
def test_a_quorum_with_a_very_slow_learner_merges_at_its_pace(pace, algorithm):
    drawn = draw_scenario(4, faults=False)
    params = replace(cut(drawn.params, 2), algorithm=algorithm, interval_steps=8, min_quorum=2)
    params = replace(params, alive_ns=3 * pace * STEP_NS, live_ns=40 * pace * STEP_NS)
    slow = replace(drawn, params=params, num_learners=2, step_ns=(STEP_NS, pace * STEP_NS))
    world, checker = run_scenario(slow)
    assert not checker.violations
    merged = [e.item.record for e in world.tape if isinstance(e.item, Stored)]
    parts = [r.contributors for r in merged if isinstance(r, RoundRecord)]
    assert len(parts) >= MIN_MERGES // 2
    assert sum(len(names) == 2 for names in parts) >= 0.9 * len(parts)


@pytest.mark.parametrize("seed", range(20, 26))
def test_diloco_with_one_fragment_is_the_same_machine(seed):
    drawn = draw_scenario(seed, tensors=False)
    params = replace(cut(drawn.params, 1), algorithm="diloco", interval_steps=8)
    _, checker = run_scenario(replace(drawn, params=params))
    assert not checker.violations


def test_a_failure_shrinks_to_fewer_faults_and_tells_its_story():
    bug = next(bug for bug in BUGS if bug.name == "quorum-off-by-one")
    with bug.applied():
        small = shrink(bug.known_seed)
        assert small is not None
        assert len(small.plan) < len(draw_scenario(bug.known_seed).plan) / 2
        world, checker = run_scenario(small)
        lines = list(narrate(world.tape, checker.violations))
    assert any(line.mood == "wrong" and "I3" in line.text for line in lines)
    assert any(line.mood == "fault" for line in lines)


def test_shrinking_a_clean_seed_finds_nothing():
    assert shrink(1) is None


def test_params_have_working_defaults():
    params = RunParams()
    assert len({params.offset(p) for p in range(params.num_fragments)}) == params.num_fragments
