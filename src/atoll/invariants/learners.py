"""The learners' side of the account: what each says became of its tokens, held against the commits.

If the tape was cut, commits before its beginning are known only as a sum: up to which token an incarnation
was merged, not in which intervals. There a learner's word is believed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.core import commands as do
from atoll.core import events as ev
from atoll.core import messages as msg
from atoll.invariants.books import NO_INTERVALS, Intervals, Violation

if TYPE_CHECKING:
    from atoll.invariants.checker import Checker

__all__ = ["BEFORE", "settled", "staged", "started", "told", "welcomed"]

BEFORE = "before"
"""The label of tokens that were merged, or had another fate, before the tape begins."""


def started(checker: Checker, actor: str, event: ev.Started) -> None:
    """A life of a learner begins."""
    checker.owners[actor] = (event.name, 0)


def told(checker: Checker, actor: str, item: do.Tell) -> None:
    """Its reports say which incarnation it is; and, after a way back, that its clock went back too."""
    message = item.message
    if isinstance(message, msg.Report):
        checker.owners[actor] = (message.name, message.incarnation)
        checker.known_epochs[actor] = message.epoch
        t = checker.rewound.pop(actor, message.clock)
        checker.expect(
            "I12", message.clock == t, lambda: f"{actor}: clock {message.clock} after a way back to {t}"
        )


def welcomed(checker: Checker, actor: str, welcome: msg.Welcome) -> None:
    """A learner hears of a way back, unless the welcome is not its own: then it says nothing."""
    if checker.known_epochs.get(actor, welcome.epoch) < min(welcome.rewound, welcome.epoch):
        checker.rewound[actor] = welcome.t


def staged(checker: Checker, actor: str, item: do.Stage) -> None:
    """I4: what an earlier life of the syncer published is not taken in."""
    epoch, known = item.publish.epoch, checker.known_epochs.get(actor, item.publish.epoch)
    checker.expect("I4", epoch == known, lambda: f"{actor} of epoch {known} takes a publish of {epoch}")


def settled(checker: Checker, actor: str, item: do.Settle) -> None:
    """I5: an interval of tokens has one fate, and it is the one that the commits tell."""
    name, incarnation = checker.owners[actor]
    key = (name, incarnation, item.fragment)
    clash = checker.settled.setdefault(key, Intervals()).add(item.start, item.end, item.fate)
    who = f"{name} (incarnation {incarnation}), fragment {item.fragment}"
    checker.expect("I5", clash is None, lambda: f"{who}: {item} overlaps {clash}")
    if incarnation < checker.known_from.get(name, 0):
        return
    merged = checker.merged.get(key, NO_INTERVALS).rows
    if item.fate == "merged":
        known = any(_tells_of(row, item) for row in merged) or (*key, item.start, item.end) in checker.voided
        text = f"{who}: [{item.start}, {item.end}) was never merged"
        if not known and not checker.versions:
            checker.unproven.append(Violation("I5", checker.now_ns, text))
        else:
            checker.expect("I5", known, lambda: text)
    else:
        over = [row for row in merged if row[0] < item.end and item.start < row[1] and row[2] != BEFORE]
        checker.expect("I5", not over, lambda: f"{who}: {item} contradicts the commit of {over}")


def _tells_of(row: tuple[int, int, str], item: do.Settle) -> bool:
    if row[2] == BEFORE:
        return row[0] <= item.start and item.end <= row[1]
    return row[:2] == (item.start, item.end)
