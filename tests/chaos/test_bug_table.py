"""Proof that the simulator can fail: every deliberate bug is caught, and only under faults.

In CI each bug is shown at a seed that is known to reveal it. `make bugs` searches from seed 1, as
somebody would who did not know, and prints the table.
"""

from __future__ import annotations

from statistics import median

import pytest

from atoll.sim.protocol import run_seed
from tests.chaos.bugs import BUGS, Bug

MAX_SEEDS = 2000
CALM_SEEDS = 40
IDS = [bug.name for bug in BUGS]


def seeds_needed(bug: Bug, limit: int) -> tuple[int, str] | None:
    """How many seeds from 1 on it takes to catch a bug, and what it broke."""
    with bug.applied():
        for seed in range(1, limit + 1):
            violations = run_seed(seed).violations
            if violations:
                return seed, violations[0].splitlines()[0]
    return None


def test_there_are_enough_bugs_with_different_names():
    assert len(BUGS) >= 15
    assert len(set(IDS)) == len(IDS)


@pytest.mark.parametrize("bug", BUGS, ids=IDS)
def test_a_bug_is_caught_at_its_known_seed(bug):
    with bug.applied():
        caught = run_seed(bug.known_seed)
    assert caught.violations, f"search again: python -m pytest -m slow -k table {__file__}"
    assert not run_seed(bug.known_seed).violations, "the seed must be clean without the bug"


@pytest.mark.parametrize("bug", BUGS, ids=IDS)
def test_a_bug_does_not_show_without_faults(bug):
    with bug.applied():
        for seed in range(1, 4):
            assert not run_seed(seed, faults=False).violations


@pytest.mark.slow
def test_the_whole_table(capsys):
    needed = {}
    rows = []
    for bug in BUGS:
        with bug.applied():
            calm = [s for s in range(1, CALM_SEEDS + 1) if run_seed(s, faults=False).violations]
        assert not calm, f"{bug.name} shows without faults at {calm}"
        found = seeds_needed(bug, MAX_SEEDS)
        assert found is not None, f"{bug.name} was not caught within {MAX_SEEDS} seeds"
        needed[bug.name] = found[0]
        rows.append(f"{found[0]:6}  {bug.name:34} {found[1][:90]}")
        with capsys.disabled():
            print(rows[-1], flush=True)
    with capsys.disabled():
        print(f"\n{len(BUGS)} bugs, all caught; median {median(needed.values()):g} seeds")
    assert sum(count > 10 for count in needed.values()) >= 5
