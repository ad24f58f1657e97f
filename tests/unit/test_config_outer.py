"""The outer optimizer's settings follow from H where they are not set."""

from __future__ import annotations

import pytest

from atoll.config import OuterConfig, RunConfig, SyncConfig, default_outer
from atoll.config.outer import OUTER_BY_INTERVAL, OUTER_RARE


def test_a_default_holds_up_to_its_largest_interval_and_the_next_one_from_there() -> None:
    largest = [steps for steps, _, _ in OUTER_BY_INTERVAL]
    assert largest == sorted(largest)
    after = [*OUTER_BY_INTERVAL[1:], (0, *OUTER_RARE)]
    for (steps, eta, mu), (_, next_eta, next_mu) in zip(OUTER_BY_INTERVAL, after, strict=True):
        assert default_outer(steps) == (eta, mu)
        assert default_outer(steps + 1) == (next_eta, next_mu)


@pytest.mark.parametrize("steps", [4, 24, 500])
def test_what_is_not_set_suits_the_interval(steps: int) -> None:
    config = RunConfig(sync=SyncConfig(interval_steps=steps, num_fragments=2))
    assert config.outer.eta_mu == default_outer(steps)


def test_what_is_set_stays_and_the_other_is_filled_in() -> None:
    config = RunConfig.from_tables({"outer": {"momentum": 0.25}})
    assert config.outer.eta_mu == (default_outer(config.sync.interval_steps)[0], 0.25)


def test_what_was_filled_in_is_written_down_so_that_a_run_keeps_it() -> None:
    config = RunConfig(sync=SyncConfig(interval_steps=4, num_fragments=2))
    assert f"learning_rate = {default_outer(4)[0]}" in config.to_toml()
    assert RunConfig.from_toml(config.to_toml()) == config


def test_settings_without_a_run_have_no_numbers_yet() -> None:
    with pytest.raises(AssertionError, match="only a RunConfig knows H"):
        _ = OuterConfig(momentum=0.5).eta_mu
