"""What can go wrong, when, and to whom: a plan drawn from the seed.

Swarm testing: every seed switches each kind of fault on or off and draws its intensity, so that
some runs see one kind alone and some see all of them. Half of the faults come at a time, half wait for a
phase of the protocol and strike there. A fault counts only if it changed what would
have happened: a crash of a living process, a cut that stopped a message somebody would have read.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from atoll.core.round import Phase
from atoll.core.syncer import SyncerMachine

__all__ = ["KINDS", "PHASES", "PlannedFault", "draw_extra", "draw_plan", "phases_of"]

NETWORK_KINDS = ("partition", "one-way", "loss", "duplication", "reordering", "corruption", "thin-link")
LEARNER_KINDS = (
    "learner-crash",
    "learner-pause",
    "learner-slow",
    "learner-leave",
    "twin",
    "stranger",
    "poison",
)
SYNCER_KINDS = ("syncer-crash", "syncer-pause")
DISK_KINDS = ("lost-write", "torn-write", "disk-full", "log-failure", "slow-disk")
WEATHER = (*LEARNER_KINDS, *SYNCER_KINDS, *NETWORK_KINDS, *DISK_KINDS)
KINDS = (*WEATHER, "rollback")

PHASES = (
    "boot",
    "seed",
    "idle",
    "gather",
    "grace",
    "bodies",
    "merge",
    "store",
    "publish",
    "heal",
    "drain",
)

WEIGHTS = {"syncer-crash": 0.5, "lost-write": 0.7, "torn-write": 0.7, "learner-crash": 1.5, "twin": 0.6}
"""Relative frequency of a kind that is switched on; 1 unless named."""


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """One fault of a plan. With a phase it waits, from its time on, until the phase holds."""

    number: int
    kind: str
    at_ns: int
    phase: str
    """The phase to strike in; "" strikes at the time itself."""
    target: int
    """Which learner, counted among those there are."""
    duration_ns: int
    strength: float
    """0..1, read by each kind in its own way."""
    fuse: int
    """Crash after this many more commands, -1 at once."""


def draw_plan(
    rng: random.Random, num_faults: int, span_ns: tuple[int, int], step_ns: int, *, with_drain: bool
) -> list[PlannedFault]:
    """Faults over a span of time."""
    share = rng.choice((0.25, 0.5, 0.75, 1.0))
    kinds = [kind for kind in WEATHER if rng.random() < share] or [rng.choice(WEATHER)]
    weights = [WEIGHTS.get(kind, 1.0) for kind in kinds]
    phases = [p for p in PHASES if with_drain or p != "drain"]
    plan = []
    for number in range(num_faults):
        kind = rng.choices(kinds, weights)[0]
        phase = rng.choice(phases) if rng.random() < 0.5 else ""
        early = phase in ("seed", "boot") and rng.random() < 0.7
        at_ns = rng.randint(*span_ns) if not early else span_ns[0] // 8
        plan.append(
            PlannedFault(
                number,
                kind,
                at_ns,
                phase,
                rng.randrange(1 << 16),
                int(step_ns * rng.choice((0.5, 1.5, 4.0, 8.0)) * (0.5 + rng.random())),
                rng.random(),
                rng.randrange(8) if rng.random() < 0.5 else -1,
            )
        )
    return sorted(plan, key=lambda fault: (fault.at_ns, fault.number))


def draw_extra(
    rng: random.Random, first: int, span_ns: tuple[int, int], step_ns: int, *, poisoned: bool
) -> list[PlannedFault]:
    """What comes on top of the weather: an operator who goes back, learners that stay bad for long."""
    kinds = ["rollback"] * rng.choice((0, 0, 0, 1, 2)) + ["poison"] * (rng.randint(3, 6) if poisoned else 0)
    extra = []
    for number, kind in enumerate(kinds, first):
        end_ns = span_ns[1] * 3 // 2 if kind == "rollback" else span_ns[1]  # or while it ends
        at_ns, target = rng.randint(span_ns[0], end_ns), rng.randrange(1 << 16)
        duration_ns = int(step_ns * rng.uniform(2, 20))
        extra.append(PlannedFault(number, kind, at_ns, "", target, duration_ns, rng.random(), -1))
    return extra


def phases_of(syncer: SyncerMachine | None, now_ns: int) -> list[str]:
    """Which phases the run is in; several rounds may stand at different points."""
    if syncer is None or not syncer.is_active:
        return ["boot"]
    desk = syncer.desk
    if not desk.state.fragments:
        return ["seed"]
    found = []
    for rnd in syncer.rounds.open.values():
        if rnd.phase is Phase.GATHER:
            has_quorum = len(rnd.headers) >= syncer.params.min_quorum
            found.append("grace" if has_quorum else "gather")
        else:
            found.append(_PHASE_NAMES[rnd.phase])
    if syncer.drain_reason and not desk.state.finished:
        found.append("drain")
    elif not found:
        found.append("idle")
    for session in desk.sessions.values():
        if session.sent and session.healed:
            found.append("publish")
        elif not session.healed and session.is_connected(now_ns, syncer.params.alive_ns):
            found.append("heal")
    return found


_PHASE_NAMES = {
    Phase.BODIES: "bodies",
    Phase.INSPECT: "merge",
    Phase.MERGE: "merge",
    Phase.PUT: "store",
    Phase.COMMIT: "store",
}
