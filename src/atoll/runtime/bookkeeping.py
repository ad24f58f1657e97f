"""The books across a restart of the syncer: saved once a second, taken up again by the next life.

Goodput, participation and byte counts are of the run, not of one life of its syncer. Monotonic clocks mean
nothing to another process, so times are saved as ages, beside the wall clock of that moment: what passed
between two lives counts as time, as it should. Nothing here decides anything; a file that is missing or
spoiled costs history, and the run goes on.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from typing import Any

import msgspec

from atoll.runtime.books import SAMPLES_KEPT, Books, LearnerBook
from atoll.wire.messages import Telemetry

__all__ = ["restore", "save"]

log = logging.getLogger("atoll")

SAMPLES_SAVED = 64
_COUNTS = ("num_places", "num_merged", "body_bits", "body_values", "publish_bits", "publish_values")
_TIMES = ("admitted_ns",)
_SPECIAL = ("step_ns", "telemetry", *_TIMES)
_PLAIN = tuple(name for name in LearnerBook.__slots__ if name not in _SPECIAL)


def save(books: Books, traffic: tuple[int, int], now_ns: int, wall_s: float) -> bytes:
    """Everything worth keeping, as JSON."""
    learners = [
        {
            **{name: getattr(book, name) for name in _PLAIN},
            "admitted_age_ns": now_ns - book.admitted_ns,
            "step_ns": list(book.step_ns)[-SAMPLES_SAVED:],
            "telemetry": msgspec.to_builtins(book.telemetry),
        }
        for book in books.learners.values()
    ]
    return json.dumps(
        {
            "wall_s": wall_s,
            "age_ns": now_ns - books.began_ns,
            "traffic": traffic,
            "notes": list(books.notes),
            "learners": learners,
            **{name: getattr(books, name) for name in _COUNTS},
        }
    ).encode()


def restore(books: Books, content: bytes, now_ns: int, wall_s: float) -> tuple[int, int]:
    """Take the books of an earlier life up again; returns the bytes it had moved up and down."""
    try:
        saved: dict[str, Any] = json.loads(content)
        gap_ns = max(0, int((wall_s - saved["wall_s"]) * 1e9))
        learners = [_learner(row, now_ns - gap_ns) for row in saved["learners"]]
        up, down = map(int, saved["traffic"])
        counts = {name: int(saved[name]) for name in _COUNTS}
        began_ns = now_ns - gap_ns - int(saved["age_ns"])
        notes = [dict(note) for note in saved["notes"]]
    except (ValueError, TypeError, KeyError, msgspec.ValidationError) as error:
        log.warning("the books of the syncer's last life cannot be read (%s): counters begin anew", error)
        return 0, 0
    books.began_ns = began_ns
    books.learners = {book.name: book for book in learners}
    books.notes.extend(notes)
    for name, value in counts.items():
        setattr(books, name, value)
    return up, down


def _learner(row: dict[str, Any], then_ns: int) -> LearnerBook:
    book = LearnerBook(str(row["name"]), then_ns - int(row["admitted_age_ns"]))
    for name in _PLAIN:
        setattr(book, name, type(getattr(book, name))(row[name]))
    book.step_ns = deque((int(value) for value in row["step_ns"]), maxlen=SAMPLES_KEPT)
    book.telemetry = msgspec.convert(row["telemetry"], Telemetry | None)
    return book
