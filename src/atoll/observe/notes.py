"""Notes of the syncer and of the supervisor as plain sentences.

A note is `{at_s, kind, who, reason}`: a decision with its reason, or a deed such as a kill. Many come
in bursts (sixteen learners are admitted at once, a slow link drops offer after offer), so
neighbours of one kind and reason are told as one sentence. `fresh` says which notes of a status
were not in the one before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atoll.observe.formats import plain

__all__ = ["Line", "Note", "fresh", "tell"]

Note = Mapping[str, Any]

MAX_NAMES = 4
"""Learners named in one sentence; of more than these two are named and the others counted."""

MOODS = {
    **dict.fromkeys(("killed", "lost", "store", "damage", "quarantined"), "wrong"),
    **dict.fromkeys(("cancelled", "clipped", "dropped", "refused", "fenced"), "bad"),
    **dict.fromkeys(("admitted", "back", "released", "restarted", "finished", "writable"), "good"),
}


@dataclass(frozen=True, slots=True)
class Line:
    """One sentence and when it was true. `mood`: good, plain, bad (an ordinary loss), wrong (look here)."""

    at_s: float | None
    text: str
    mood: str = "plain"


def tell(notes: Sequence[Note]) -> list[Line]:
    """Sentences in the order of the notes, neighbours of one kind and reason as one."""
    lines: list[Line] = []
    start = 0
    for index in range(1, len(notes) + 1):
        if index == len(notes) or _topic(notes[index]) != _topic(notes[start]):
            lines.append(_line(notes[start:index]))
            start = index
    return lines


def fresh(before: Sequence[Note], now: Sequence[Note]) -> list[Note]:
    """The notes of `now` that were not in `before`, in order. Equal notes are told apart by count."""
    known = Counter(_identity(note) for note in before)
    found = []
    for note in now:
        if known[_identity(note)] > 0:
            known[_identity(note)] -= 1
        else:
            found.append(note)
    return found


def _identity(note: Note) -> tuple[object, ...]:
    return tuple(note.get(key) for key in ("at_s", "kind", "who", "reason"))


def _topic(note: Note) -> tuple[object, object]:
    return note.get("kind"), note.get("reason")


def _line(group: Sequence[Note]) -> Line:
    kind = plain(group[0].get("kind") or "note")
    reason = plain(group[0].get("reason") or "")
    names = list(dict.fromkeys(plain(note["who"]) for note in group if note.get("who")))
    text = _sentence(kind, names, reason, len(group))
    return Line(group[-1].get("at_s"), text, MOODS.get(kind, "plain"))


def _sentence(kind: str, names: list[str], reason: str, num: int) -> str:
    who, why = _listed(names), f": {reason}" if reason else ""
    was, is_ = ("was", "is") if len(names) <= 1 else ("were", "are")
    match kind:
        case "admitted" if reason in ("", "incarnation 1"):
            return f"{who} joined"
        case "admitted":
            return f"{who} {is_} back as {reason}, healing"
        case "back":
            return f"{who} {is_} back{why}"
        case "killed" | "restarted" | "lost" | "refused" | "quarantined":
            return f"{who} {was} {kind}{why}"
        case "fenced":
            return f"an older incarnation of {who} was fenced off{why}"
        case "left":
            return f"{who} left" + ("" if reason == "said goodbye" else why)
        case "dropped":
            return f"{_times(num, 'offer')} of {who} dropped" + (f", {reason}" if reason else "")
        case "clipped":
            return f"{_times(num, 'offer')} of {who} {reason}"
        case "released":
            return f"{who} {is_} out of quarantine{why}"
        case "moments":
            return f"the optimizer state of {who} is {reason}"
        case "cancelled":
            return f"{_times(num, 'round')} cancelled{why}"
        case "drain":
            return f"the last rounds begin{why}"
        case "finished":
            return f"the run is finished{why}"
        case "damage":
            return f"the store is damaged{why}"
        case "writable":
            return reason
        case "store" | "quorum":
            return f"{kind}{why}"
    return (f"{who}: " if names else "") + kind + why


def _listed(names: list[str]) -> str:
    if not names:
        return "somebody"
    if len(names) <= MAX_NAMES:
        return ", ".join(names)
    return f"{names[0]}, {names[1]} and {len(names) - 2} more"


def _times(num: int, noun: str) -> str:
    return f"an {noun}" if num == 1 and noun[0] in "aeiou" else f"a {noun}" if num == 1 else f"{num} {noun}s"
