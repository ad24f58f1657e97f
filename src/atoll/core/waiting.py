"""The grace window of one round: what rounds and sessions tell, put to the rules of `grace`."""

from __future__ import annotations

from collections.abc import Sequence

from atoll.core.desk import Desk
from atoll.core.grace import Late, MovingAverage, slack_window_ns, worth_until_ns
from atoll.core.round import Round

__all__ = ["grace_ns"]

STILL_STEPS = 2
"""A learner that has not told of a step for as long as this many of its own stands still."""
FASTEST = 8
"""How many times faster than the median learner one may be believed to be."""


def grace_ns(
    rnd: Round, missing: Sequence[str], desk: Desk, quorum: MovingAverage, merge: MovingAverage, now_ns: int
) -> int:
    """How long after its K-th header a round may wait for the missing; 0 until that header is there."""
    params = desk.params
    if params.waits or not missing or len(rnd.offered_at_ns) < params.min_quorum:
        return 0  # the verdict does not ask for it
    step_ns = desk.step_ns()
    if params.grace_rule == "slack":
        slack_ns = slack_window_ns(step_ns, quorum, merge, params.overlap_steps, params.grace_fraction)
        return min(slack_ns, int(params.grace_max_steps * step_ns))
    quorum_ns = sorted(rnd.offered_at_ns.values())[params.min_quorum - 1]
    # With tau rounds that all wait for longer than tau steps, those that fall due meanwhile could not open.
    most_steps = min(params.grace_max_steps, max(1, params.overlap_steps - 1))
    late = _late(rnd, missing, desk, now_ns)
    latest_ns = quorum_ns + int(most_steps * step_ns)
    return worth_until_ns(late, _tokens_per_ns(rnd, desk, step_ns), now_ns, latest_ns) - quorum_ns


def _late(rnd: Round, missing: Sequence[str], desk: Desk, now_ns: int) -> list[Late]:
    """Who of the missing may still come with something: not who stands still or will abstain."""
    found, p = [], rnd.fragment
    for name in missing:
        session = desk.sessions[name]
        step_ns = session.pace.value
        if now_ns < session.moved_ns + STILL_STEPS * step_ns and desk.may_offer(session, p):
            found.append(
                Late(
                    session.tokens - max(0, session.holdings[p].origin),
                    session.due_ns(rnd.opened_ns),
                    step_ns,
                )
            )
    return found


def _tokens_per_ns(rnd: Round, desk: Desk, usual_ns: int) -> float:
    """What those who have offered train while the round waits, in order of their names.

    A pace is what a learner says: one that would be far faster than the rest is not believed, or a single
    wrong number would make waiting dear for all. What is trained after a run's last offer is lost anyway.
    """
    found = 0.0
    for name, header in sorted(rnd.headers.items()) if not rnd.is_drain else ():
        step_ns = max(desk.sessions[name].pace.value, usual_ns / FASTEST)
        if step_ns > 0 and header.steps > 0:
            found += (header.end - header.start) / (header.steps * step_ns)
    return found
