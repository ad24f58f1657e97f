"""What holds of every verdict, schedule, window and weight, whatever the numbers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from atoll.core.grace import MIN_SAMPLES, Late, MovingAverage, slack_window_ns, worth_until_ns
from atoll.core.params import RunParams
from atoll.core.quorum import Cancel, Close, Gathering, Wait, judge
from atoll.core.schedule import Schedule
from atoll.core.weights import token_weight

NAMES = [f"learner-{m}" for m in range(8)]


@st.composite
def gatherings(draw) -> Gathering:
    """Any round that can exist: who offered when, who is missing, and the policy."""
    asked = draw(st.lists(st.sampled_from(NAMES), unique=True, min_size=1))
    num_offers = draw(st.integers(0, len(asked)))
    return Gathering(
        fragment=0,
        deadline_ns=draw(st.integers(1, 200)),
        offered_at_ns={name: draw(st.integers(0, 100)) for name in asked[:num_offers]},
        missing=tuple(sorted(asked[num_offers:])),
        min_quorum=draw(st.integers(1, 8)),
        grace_ns=draw(st.integers(0, 100)),
        waits=draw(st.booleans()),
    )


def newest_ns(view: Gathering) -> int:
    """The time of the last thing that a verdict can know of."""
    return max(view.offered_at_ns.values(), default=0)


times = st.integers(0, 400)


@given(gatherings(), times)
def test_a_round_never_closes_with_fewer_offers_than_the_quorum(view, wait_ns):
    verdict = judge(view, newest_ns(view) + wait_ns)
    if isinstance(verdict, Close):
        assert len(verdict.contributors) >= view.min_quorum
        assert verdict.contributors == tuple(sorted(view.offered_at_ns))


@given(gatherings(), times)
def test_a_round_never_waits_past_its_deadline_and_never_for_a_moment_that_has_passed(view, wait_ns):
    now_ns = newest_ns(view) + wait_ns
    verdict = judge(view, now_ns)
    if isinstance(verdict, Wait):
        assert now_ns < verdict.wake_at_ns <= view.deadline_ns
    assert not isinstance(judge(view, view.deadline_ns), Wait)


@given(gatherings(), times, times)
def test_a_verdict_that_ends_a_round_stays_the_same_end_while_nothing_else_happens(view, wait_ns, more_ns):
    now_ns = newest_ns(view) + wait_ns
    first, later = judge(view, now_ns), judge(view, now_ns + more_ns)
    if not isinstance(first, Wait):
        assert type(later) is type(first)
    if isinstance(first, Close) and isinstance(later, Close):
        assert later.contributors == first.contributors


@given(gatherings(), times)
def test_between_a_wait_and_its_wake_up_nothing_changes_and_at_the_wake_up_something_does(view, wait_ns):
    now_ns = newest_ns(view) + wait_ns
    verdict = judge(view, now_ns)
    if isinstance(verdict, Wait):
        assert judge(view, verdict.wake_at_ns - 1) == verdict
        assert not isinstance(judge(view, verdict.wake_at_ns), Wait)


@given(gatherings(), times)
def test_a_round_is_cancelled_only_below_its_quorum(view, wait_ns):
    if isinstance(judge(view, newest_ns(view) + wait_ns), Cancel):
        assert len(view.offered_at_ns) < view.min_quorum


@given(gatherings(), times)
def test_a_waiting_round_goes_on_without_a_live_learner_only_at_the_deadline(view, wait_ns):
    now_ns = newest_ns(view) + wait_ns
    if view.waits and view.missing and isinstance(judge(view, now_ns), Close):
        assert now_ns >= view.deadline_ns


# Schedule

cycles = st.integers(1, 30).flatmap(lambda H: st.tuples(st.integers(1, H), st.just(H)))
walks = st.lists(
    st.dictionaries(st.sampled_from(NAMES[:4]), st.integers(0, 3), max_size=4), min_size=1, max_size=40
)


@given(cycles, st.integers(1, 3), walks)
def test_t_never_falls_and_moves_no_faster_than_the_fastest_learner_that_counts(cycle, quorum, walk):
    P, H = cycle
    plan = Schedule(RunParams(num_fragments=P, interval_steps=H, min_quorum=quorum))
    clocks = dict.fromkeys(NAMES[:4], 0)
    for steps in walk:
        for name, num_steps in steps.items():
            clocks[name] += num_steps
        before = plan.t
        plan.advance({name: clocks[name] for name in steps})
        assert plan.t >= before
        assert plan.t <= max(clocks.values()) + max(plan.shifts.values(), default=0)
        if len(steps) < quorum:
            assert plan.t == before


@given(cycles, st.integers(1, 3), walks)
def test_every_tick_that_was_not_skipped_fires_its_fragment_and_no_skipped_one_does(cycle, quorum, walk):
    P, H = cycle
    plan = Schedule(RunParams(num_fragments=P, interval_steps=H, min_quorum=quorum))
    offsets = {plan.params.offset(p): p for p in range(P)}
    clocks = dict.fromkeys(NAMES[:4], 0)
    for steps in walk:
        for name, num_steps in steps.items():
            clocks[name] += num_steps
        before = plan.t
        skipped = plan.advance({name: clocks[name] for name in steps})
        passed = range(before + 1, plan.t + 1)
        if skipped:
            assert skipped == (before, plan.t)
            assert len(passed) > H // 2
            assert plan.due == {}
        else:
            expected: dict[int, int] = {}
            for tick in passed:
                if tick % H in offsets:
                    expected.setdefault(offsets[tick % H], tick)
            assert plan.due == expected
        plan.due.clear()


@given(cycles, st.integers(0, 200))
def test_next_due_is_where_the_fragment_fires_next(cycle, t):
    P, H = cycle
    plan = Schedule(RunParams(num_fragments=P, interval_steps=H), t=t)
    for p in range(P):
        assert t < plan.next_due(p) <= t + H
        assert plan.next_due(p) % H == plan.params.offset(p)


# Grace

durations = st.floats(0, 1e12)


@given(durations, durations, durations, st.integers(1, 8), st.floats(0, 1), st.integers(0, 9))
def test_slack_is_at_most_its_share_of_the_overlap(step, quorum, merge, overlap, fraction, samples):
    averages = MovingAverage(0.2, quorum, samples), MovingAverage(0.2, merge, MIN_SAMPLES)
    window = slack_window_ns(step, *averages, overlap, fraction)
    assert 0 <= window <= fraction * overlap * step
    if samples < MIN_SAMPLES or quorum + merge > overlap * step:
        assert window == 0


lates = st.lists(
    st.builds(Late, st.integers(0, 10_000), st.integers(0, 10_000), st.integers(0, 5_000)), max_size=8
)


moments = st.integers(0, 10_000)


@given(lates, st.floats(0.01, 100), moments, moments, st.randoms())
def test_waiting_by_worth_never_costs_more_than_twice_what_the_late_bring(late, rate, now, latest, rng):
    until = worth_until_ns(late, rate, now, latest)
    assert now <= until <= max(now, latest)
    # Until they are due, and as long again for the last of them: each at most what they would bring.
    assert (until - now) * rate <= 2 * sum(one.tokens for one in late) + 1e-6
    rng.shuffle(late)
    assert worth_until_ns(late, rate, now, latest) == until


@given(st.floats(0.01, 1), st.lists(durations, min_size=1, max_size=20))
def test_a_moving_average_stays_between_its_smallest_and_its_largest_sample(averaging, samples):
    average = MovingAverage(averaging)
    for sample in samples:
        average.add(sample)
    slack = 1e-9 * max(samples)
    assert min(samples) - slack <= average.value <= max(samples) + slack


# Weights


@given(st.integers(1, 10**9), st.integers(1, 10**4), st.integers(0, 6))
def test_a_weight_is_linear_in_steps_and_quadratic_in_the_batch(batch, steps, doublings):
    factor = 2**doublings
    weight = token_weight(batch * steps, steps)
    assert token_weight(batch * steps * factor, steps * factor) == factor * weight
    assert token_weight(batch * factor * steps, steps) == factor**2 * weight


@given(st.integers(1, 10**9), st.integers(1, 10**4))
def test_the_same_tokens_in_more_steps_weigh_less(tokens, steps):
    assert token_weight(tokens, steps + 1) < token_weight(tokens, steps)
