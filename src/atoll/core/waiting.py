"""The grace window of one round: what rounds and sessions tell, put to the rules of `grace`."""

from __future__ import annotations

from collections.abc import Sequence

from atoll.core.desk import Desk
from atoll.core.grace import Late, MovingAverage, slack_window_ns, worth_until_ns
from atoll.core.round import Round

__all__ = ["grace_ns"]


def grace_ns(
    rnd: Round, missing: Sequence[str], desk: Desk, quorum: MovingAverage, merge: MovingAverage, now_ns: int
) -> int:
    """How long after its K-th header a round may wait for the missing; 0 until that header is there."""
    params = desk.params
    if params.waits or not missing or len(rnd.offered_at_ns) < params.min_quorum:
        return 0  # the verdict does not ask for it
    step_ns = desk.step_ns()
    if params.grace_rule == "slack":
        window_ns = slack_window_ns(step_ns, quorum, merge, params.overlap_steps, params.grace_fraction)
    else:
        quorum_ns = sorted(rnd.offered_at_ns.values())[params.min_quorum - 1]
        late = [_late(desk, name, rnd.fragment) for name in missing]
        window_ns = worth_until_ns(late, _tokens_per_ns(rnd, desk), now_ns) - quorum_ns
    return min(window_ns, int(params.grace_max_steps * step_ns))


def _late(desk: Desk, name: str, p: int) -> Late:
    session = desk.sessions[name]
    step_ns = session.pace.value
    return Late(session.tokens - session.holdings[p].origin, session.moved_ns + step_ns, step_ns)


def _tokens_per_ns(rnd: Round, desk: Desk) -> float:
    """What those who have offered train while the round waits, in order of their names."""
    found = 0.0
    for name, header in sorted(rnd.headers.items()):
        step_ns = desk.sessions[name].pace.value
        if step_ns > 0 and header.steps > 0:
            found += (header.end - header.start) / (header.steps * step_ns)
    return found
