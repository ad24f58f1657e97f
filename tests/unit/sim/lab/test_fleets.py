"""Schedules: calm, slow, failing and borrowed fleets, as the virtual world runs on them."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import pytest

from atoll.errors import ConfigError
from atoll.sim.fleet.trace import CapacityTrace
from atoll.sim.lab.cell import Cell, Fleet
from atoll.sim.lab.fleets import DEATH_S, FAILING_STEP_S, elastic_steps, schedule_of
from atoll.sim.scale.scenario import DARK_S
from atoll.sim.units import YEAR

PAPER = Fleet(step_s=FAILING_STEP_S, chips=1_200_000, mtbi_s=YEAR)


def cell(**changes: object) -> Cell:
    """1,600 steps of 1,024 tokens."""
    settings: dict[str, object] = {"tokens": 1_600 * 1_024, "batch": 16, "learning_rate": 1e-3, **changes}
    return Cell(**settings)  # type: ignore[arg-type]  # a bag of settings


def test_a_calm_fleet_has_all_its_chips_all_the_time() -> None:
    schedule = schedule_of(cell(learners=2))
    assert list(schedule.traces) == ["learner-00", "learner-01"]
    assert set(schedule.traces.values()) == {CapacityTrace((0.0,), (1.0,))}
    assert schedule.model_goodput(1_000.0) == 1.0
    assert schedule.dark_s == DARK_S
    assert not schedule.leaves_s


def test_names_sort_as_numbers_do() -> None:
    names = list(schedule_of(cell(learners=16)).traces)
    assert names == sorted(names)
    assert len(names) == 16


def test_a_learner_of_half_the_speed_takes_twice_as_long_for_a_step() -> None:
    schedule = schedule_of(cell(learners=4, fleet=Fleet(step_s=2.0, speeds=(1.0, 0.5))))
    assert list(schedule.step_s.values()) == [2.0, 4.0, 2.0, 2.0]


def test_the_same_seed_gives_the_same_failures_and_another_seed_others() -> None:
    first = schedule_of(cell(learners=8, fleet=PAPER))
    assert schedule_of(cell(learners=8, fleet=PAPER)) == first
    assert schedule_of(cell(learners=8, fleet=PAPER, seed=2)).traces != first.traces


def test_the_luck_of_the_fleet_does_not_depend_on_the_settings_of_the_protocol() -> None:
    first = schedule_of(cell(learners=8, fleet=PAPER))
    assert schedule_of(cell(learners=8, fleet=PAPER, eta=0.7, codec_up="int4")).traces == first.traces


def test_eight_learners_on_1200k_chips_have_the_goodput_that_the_paper_prints_within_three_points() -> None:
    run_s = 1_600 * FAILING_STEP_S / 0.88
    for seed in (1, 2, 3):
        schedule = schedule_of(cell(learners=8, seed=seed, fleet=PAPER))
        assert schedule.model_goodput(run_s) == pytest.approx(0.88, abs=0.03)


def test_a_failing_fleet_never_has_more_than_all_its_chips_and_pauses_for_the_times_of_the_model() -> None:
    for trace in schedule_of(cell(learners=8, fleet=PAPER)).traces.values():
        assert trace.chips[0] == 1.0
        assert max(trace.chips) == 1.0
        gaps = [
            round(trace.times_s[i + 1] - trace.times_s[i], 6)
            for i, share in enumerate(trace.chips[:-1])
            if share == 0
        ]
        assert set(gaps) == {17.5, 13.0}


def test_every_pause_is_a_death_where_deaths_are_asked_for_and_none_is_otherwise() -> None:
    paused = schedule_of(cell(learners=8, fleet=PAPER))
    dying = schedule_of(cell(learners=8, fleet=replace(PAPER, has_deaths=True)))
    assert dying.traces == paused.traces
    assert dying.dark_s == DEATH_S < 13.0
    assert paused.dark_s > 17.5


def test_extra_learners_leave_when_half_the_tokens_are_trained() -> None:
    schedule = schedule_of(cell(learners=4, fleet=Fleet(extra=4)))
    assert list(schedule.leaves_s) == [f"learner-{number:02d}" for number in (4, 5, 6, 7)]
    assert set(schedule.leaves_s.values()) == {400.0}  # 800 steps of all tokens at twice the pace
    assert schedule.traces["learner-04"] == CapacityTrace((0.0, 400.0), (1.0, 0.0))
    assert schedule.traces["learner-03"] == CapacityTrace((0.0,), (1.0,))


def test_a_learner_that_left_does_not_count_against_the_goodput() -> None:
    schedule = schedule_of(cell(learners=4, fleet=Fleet(extra=4)))
    assert schedule.model_goodput(1_200.0) == pytest.approx(1.0)
    assert schedule.model_goodput(100.0) == pytest.approx(1.0)


def test_half_the_images_are_trained_when_extra_learners_of_a_vision_task_leave() -> None:
    images = cell(task="vision", tokens=1_600 * 16, learners=4, fleet=Fleet(extra=4))
    assert set(schedule_of(images).leaves_s.values()) == {400.0}


def test_a_schedule_lasts_long_after_the_work_is_done() -> None:
    assert schedule_of(cell()).until_s > 3 * 1_600
    slow = cell(learners=2, fleet=Fleet(speeds=(0.25, 0.25)))
    assert schedule_of(slow).until_s > 3 * 4 * 1_600


def test_who_waits_for_a_slow_learner_is_given_the_time_for_it() -> None:
    one_slow = Fleet(speeds=(1.0, 1.0, 1.0, 0.1))
    decoupled, streaming = (cell(method=method, fleet=one_slow) for method in ("decoupled", "streaming"))
    assert schedule_of(streaming).until_s > 10 * 1_600 > schedule_of(decoupled).until_s


def test_a_fleet_that_could_never_do_the_work_is_refused() -> None:
    hopeless = Fleet(step_s=5.0, chips=100_000_000, mtbi_s=YEAR)
    with pytest.raises(ConfigError, match="100000000 chips"):
        schedule_of(cell(learners=4, fleet=hopeless))


def test_data_parallel_and_its_elastic_form_are_one_learner() -> None:
    assert list(schedule_of(cell(method="data-parallel", learners=8, fleet=PAPER)).traces) == ["learner-00"]
    assert list(schedule_of(cell(method="elastic", learners=8, fleet=PAPER)).traces) == ["learner-00"]


def test_a_schedule_follows_from_the_plain_settings() -> None:
    elastic = cell(method="elastic", learners=8, fleet=PAPER)
    assert schedule_of(elastic) == schedule_of(elastic.plain())


def test_elastic_data_parallel_on_the_same_chips_steps_little_more_than_half_the_time() -> None:
    steps = list(islice(elastic_steps(cell(method="elastic", learners=8, fleet=PAPER)), 1_600))
    busy = 1_600 * FAILING_STEP_S * sum(share for _, share in steps) / 1_600
    assert busy / sum(seconds for seconds, _ in steps) == pytest.approx(0.555, abs=0.04)
    assert min(seconds for seconds, _ in steps) >= FAILING_STEP_S
    assert all(0.9 < share <= 1.0 for _, share in steps)


def test_the_steps_of_elastic_data_parallel_agree_with_the_model_of_their_time() -> None:
    elastic = cell(method="elastic", fleet=PAPER)
    steps = list(islice(elastic_steps(elastic), 1_000))
    seconds = sum(took for took, _ in steps)
    done = sum(share for _, share in steps) * FAILING_STEP_S / seconds
    assert done == pytest.approx(schedule_of(elastic).model_goodput(seconds), abs=1e-6)


def test_elastic_data_parallel_on_a_calm_fleet_takes_full_steps() -> None:
    assert list(islice(elastic_steps(cell(method="elastic")), 3)) == [(1.0, 1.0)] * 3


def test_the_steps_of_elastic_data_parallel_outlast_the_work_and_end() -> None:
    steps = list(elastic_steps(cell(method="elastic", tokens=100 * 1_024, fleet=PAPER)))
    assert sum(share for _, share in steps) > 100
