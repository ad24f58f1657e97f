"""What a simulated learner does about optimizer state, and what it refuses to take."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from atoll.core import commands as do
from atoll.core import events as ev
from atoll.core import messages as msg
from atoll.core.records import EpochRecord
from atoll.invariants import check
from atoll.sim.faults import PlannedFault
from atoll.sim.moments import Token
from atoll.sim.world import STEP_NS, World, draw_scenario
from atoll.tape.entries import Stored


def planned(kind: str, *, at: int, target: int = 0, steps: int = 3, strength: float = 0.1) -> PlannedFault:
    return PlannedFault(0, kind, at * STEP_NS, "", target, steps * STEP_NS, strength, -1)


def run(*plan: PlannedFault, **values: Any) -> World:
    """A calm fleet to which just this happens; nothing is violated."""
    calm = draw_scenario(3, faults=False)
    params = replace(calm.params, algorithm="decoupled", min_quorum=1, durability="merge", **values)
    world = World(replace(calm, params=params, num_learners=4, plan=plan, faults_until_ns=60 * STEP_NS))
    world.run()
    assert [str(violation) for violation in check(world.tape, params).violations] == []
    return world


@pytest.fixture(scope="module")
def donated() -> World:
    return run(planned("learner-crash", at=20), donates=True)


def items(world: World, kind: type) -> list[Any]:
    return [entry.item for entry in world.tape if isinstance(entry.item, kind)]


def test_a_life_that_comes_back_takes_every_fragment_of_a_peers_state(donated):
    taken = [command.message.fragment for command in items(donated, do.TakeMoments)]
    assert taken == list(range(donated.scenario.params.num_fragments))
    assert [event.source for event in items(donated, ev.MomentsRestored)] == ["peer"]


def test_without_donations_it_finds_its_own():
    world = run(planned("learner-crash", at=20))
    assert [event.source for event in items(world, ev.MomentsRestored)] == ["own"]
    assert items(world, do.TakeMoments) == []


@pytest.mark.parametrize(
    "token",
    [
        None,
        Token("learner-2", 1, 0, True),
        Token("learner-1", 1, 1, True),
        Token("learner-1", 1, 0, False),
    ],
)
def test_what_is_not_what_was_promised_is_not_taken(donated, token):
    process = donated.living()[0]
    process.payload = token
    with pytest.raises(AssertionError):
        process.moments._take(do.TakeMoments(msg.Moments(1, 1, 0, "learner-1", "ff", 1)))


def test_a_bad_learner_is_quarantined_heals_and_begins_anew():
    world = run(planned("poison", at=15, steps=10), strikes=2, quarantine_steps=8)
    kinds = [note.kind for note in items(world, do.Note) if note.kind in ("quarantined", "released")]
    assert "quarantined" in kinds
    assert "released" in kinds
    assert "fresh" in [event.source for event in items(world, ev.MomentsRestored)]


def test_an_operator_takes_the_run_back_and_it_goes_on_from_there():
    world = run(planned("rollback", at=30, strength=0.5))
    (back,) = [
        s.record for s in items(world, Stored) if isinstance(s.record, EpochRecord) and s.record.t >= 0
    ]
    assert back.rollbacks
    assert [kind for kind, _ in world.struck] == ["syncer-crash", "rollback"]
    assert world.is_finished()
