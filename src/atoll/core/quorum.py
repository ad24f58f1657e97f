"""When a round may close: a pure verdict with its reason.

A round gathers headers. It closes once K of the learners it asked have offered and the grace
window, opened by the K-th header, is over; early when nobody is missing. Under the waiting
algorithms the quorum is everybody who was asked and is still live. A round that can no longer
reach K is cancelled: nobody's progress is touched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Cancel", "Close", "Gathering", "Wait", "judge"]


@dataclass(frozen=True, slots=True)
class Gathering:
    """What a verdict looks at. Names are in sorted order wherever they are listed."""

    fragment: int
    deadline_ns: int
    """Time at which the fragment is due again."""
    offered_at_ns: Mapping[str, int]
    missing: tuple[str, ...]
    """Asked, live, and silent so far."""
    min_quorum: int
    grace_ns: int
    waits: bool


@dataclass(frozen=True, slots=True)
class Wait:
    """Not yet; look again at `wake_at_ns` at the latest."""

    reason: str
    wake_at_ns: int


@dataclass(frozen=True, slots=True)
class Close:
    """The contributors are fixed."""

    reason: str
    contributors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Cancel:
    """No merge will come of this round."""

    reason: str


def judge(view: Gathering, now_ns: int) -> Wait | Close | Cancel:
    """Say whether a round may close, and why.

    Paper: minimum quorum K and contributor set M_t, arXiv:2604.21428v1.
    """
    offered = sorted(view.offered_at_ns)
    reachable = len(offered) + len(view.missing)
    if reachable < view.min_quorum:
        return Cancel(
            f"quorum of {view.min_quorum} out of reach: {len(offered)} offered, nobody else is left"
        )
    if not view.missing:
        return Close("all offered", tuple(offered))
    if now_ns >= view.deadline_ns:
        if len(offered) >= view.min_quorum:
            return Close(f"due again, closed without {list(view.missing)}", tuple(offered))
        return Cancel(f"due again with {len(offered)} of {view.min_quorum} offers")
    if view.waits or len(offered) < view.min_quorum:
        wanted = reachable if view.waits else view.min_quorum
        return Wait(f"{len(offered)} of {wanted} offers", view.deadline_ns)
    closes_at_ns = sorted(view.offered_at_ns.values())[view.min_quorum - 1] + view.grace_ns
    if now_ns < closes_at_ns:
        return Wait(f"grace window open for {list(view.missing)}", min(closes_at_ns, view.deadline_ns))
    return Close(f"grace window over, closed without {list(view.missing)}", tuple(offered))
