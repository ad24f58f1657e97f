"""What must be true of every run, checked over its tape.

The checker is a second opinion: it shares no decision with the machines. It reads what was
stored, said and reported, keeps its own books, and compares.

I1  A fragment's version rises by one per commit and never falls, except at a taped rollback
    outside `merge` durability.
I2  Merged token intervals of one (learner, incarnation, fragment) are disjoint.
I3  No commit has fewer than K contributors.
I4  None is from a fenced incarnation, an earlier epoch, a learner in quarantine (unless its offer was
    past recall), or on a base that is not current or previous. A shard is shared only if all are taken.
    A learner takes in nothing that an earlier epoch published.
I5  The account is exact: every token of an incarnation has one fate, and what a merge contains
    is what its offers said.
I6  What was published was stored first, in `merge` durability on disk.
I7  In `decoupled`, a learner is never held.
I8  At its first offer a learner holds every fragment at the current or previous version, and so does one
    that is asked to donate its optimizer state; none in quarantine is.
I9  The fold of the stored records is the state that a restart finds.
I10 While K healed learners step and hear, the store can be written and the budget is open, a
    merge commits within the live deadline; after healing, every fragment merges within 3 H steps,
    nobody on a slow link is starved, and the run finishes when asked to.
I11 Every committed value is finite.
I12 t never falls, except when an operator goes back, and learners' clocks with it; a leap of more than
    half a cycle fires none of the rounds it passes over.
I13 A fragment has one round at a time, at most tau rounds gather, only learners that are heard
    and hear are asked, and in `decoupled` no grace window stays open for longer than `grace_max_steps`.
I14 Weights are c_tokens^2 / c_steps.
"""

from __future__ import annotations

from atoll.invariants.books import Violation
from atoll.invariants.checker import Checker, check

__all__ = ["Checker", "Violation", "check"]
