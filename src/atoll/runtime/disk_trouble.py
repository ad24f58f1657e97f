"""What the disk of a running syncer refuses at the moment, in words for the status.

A disk that is full or fails refuses commits, snapshots, or lines of the tape. Each is tried again and again,
but a person is told twice: when the trouble begins, or has another reason, and when it is over. In between it
stands among the problems of the status.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from atoll.runtime.store.files import NO_SPACE

__all__ = ["DiskTrouble", "What"]

What: TypeAlias = Literal["commit", "snapshot", "tape"]

REFUSED: dict[What, str] = {
    "commit": "nothing can be committed, so nothing is merged",
    "snapshot": "no snapshot can be written, the last one stays in force",
    "tape": "the tape cannot be written, its lines wait in memory",
}
AGAIN: dict[What, str] = {"commit": "commits", "snapshot": "takes snapshots", "tape": "writes the tape"}


@dataclass(slots=True)
class DiskTrouble:
    """What was refused the last time it was tried."""

    refused: dict[What, tuple[str, int]] = field(default_factory=dict)
    """The reason, and since when."""
    lost_lines: int = 0
    """Of the tape: refused for so long that there was no room for them in memory any more."""

    def tried(self, what: What, reason: str, now_ns: int) -> tuple[str, str] | None:
        """Something was tried on the disk, and refused if there is a reason.

        Returns a note, kind and sentence, if it is news.
        """
        known = self.refused.get(what)
        if reason:
            self.refused[what] = (reason, known[1] if known else now_ns)
            is_news = known is None or known[0] != reason
            return ("store", f"{reason}: {REFUSED[what]}") if is_news else None
        if known is None:
            return None
        del self.refused[what]
        return "writable", f"the syncer {AGAIN[what]} again, after {_seconds(now_ns - known[1])}"

    @property
    def is_blocked(self) -> bool:
        """Whether no merge can be committed."""
        return "commit" in self.refused

    def problems(self, now_ns: int) -> list[str]:
        """What is wrong now and what to do, one sentence for each reason."""
        found = []
        for reason in sorted({reason for reason, _ in self.refused.values()}):
            mine = [what for what in REFUSED if self.refused.get(what, ("", 0))[0] == reason]
            age = _seconds(now_ns - min(self.refused[what][1] for what in mine))
            cure = "Free some space" if reason == NO_SPACE else "Mend the disk"
            effects = "; ".join(REFUSED[what] for what in mine)
            found.append(f"{reason}, for {age}: {effects}. Learners train on. {cure}: it goes on by itself.")
        if self.lost_lines:
            found.append(
                f"{self.lost_lines:,} lines of the tape were lost, because the disk refused them for long: "
                "the run cannot be replayed past that gap"
            )
        return found


def _seconds(duration_ns: int) -> str:
    return f"{duration_ns / 1e9:.0f} s"
