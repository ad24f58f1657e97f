"""Optimizer state on the learner's own disk: one file per fragment, each with its stamp.

A file is written under another name and renamed, so that a kill leaves the old one or the new one. It is not
forced to the disk, which would hold up the worker: a power cut may tear it, and the digest inside then says
so. Fragments are saved at different steps, so each has its own stamp: of which run, at which tick, after how
many steps of which incarnation.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

from atoll.errors import ModelError
from atoll.numerics.moments import Copied, Moments
from atoll.runtime.failpoints import reach

__all__ = ["Found", "MomentFiles", "Stamp"]

FOLDER = "moments"


@dataclass(frozen=True, slots=True)
class Stamp:
    """When a fragment was copied."""

    run: str
    """Name of the run, and its key if it has one: ticks of another run mean nothing."""
    t: int
    """Global tick, as far as the learner knew."""
    step: int
    """Own steps of that life."""
    incarnation: int


@dataclass(frozen=True, slots=True)
class Found:
    """What an earlier life has left, and why the rest of it is of no use."""

    copies: dict[int, Copied] = field(default_factory=dict)
    problems: dict[int, str] = field(default_factory=dict)
    """By fragment."""
    oldest_t: int = 0
    """Of the copies."""


class MomentFiles:
    """The files of one learner. For one thread at a time; the state_dir's lock keeps other processes out."""

    def __init__(self, state_dir: Path) -> None:
        self.folder = state_dir / FOLDER

    def path(self, fragment: int) -> Path:
        """Where a fragment's state is kept."""
        return self.folder / f"{fragment}.safetensors"

    def write(self, moments: Moments, copied: Copied, stamp: Stamp) -> None:
        """Put one fragment in place, or raise `OSError` and leave the one before. Worker."""
        path = self.path(copied.fragment)
        part = path.with_suffix(".part")
        self.folder.mkdir(exist_ok=True)
        with open(part, "wb") as file:
            for piece in moments.to_bytes(copied, asdict(stamp)):
                file.write(piece)
        reach("L12")
        os.replace(part, path)

    def forget(self) -> None:
        """Delete what is there, as far as the disk lets us. Worker."""
        for path in self.folder.glob("*.safetensors"):
            path.unlink(missing_ok=True)

    def find(self, moments: Moments, run: str, t: int, max_age_steps: int, max_ahead: int) -> Found:
        """Everything that this run's optimizer can go on from at tick `t`: not too old, and not made after a
        tick that an operator has gone back to."""
        copies, problems, ticks = {}, {}, []
        for fragment in range(len(moments.manifest.fragments)):
            try:
                copied = moments.from_bytes(fragment, bytearray(self.path(fragment).read_bytes()))
                stamp = Stamp(**copied.notes)
                problem = _why_not(stamp, run, t, max_age_steps, max_ahead)
            except FileNotFoundError:
                problem = "nothing was saved"
            except OSError as error:
                problem = f"the disk cannot be read: {error.strerror}"
            except ModelError as error:
                problem = error.what.rstrip(".")
            except TypeError:
                problem = "what was saved has no stamp"
            if problem:
                problems[fragment] = problem
            else:
                copies[fragment] = copied
                ticks.append(stamp.t)
        return Found(copies, problems, min(ticks, default=0))


def _why_not(stamp: Stamp, run: str, t: int, max_age_steps: int, max_ahead: int) -> str:
    """A restart of the syncer may take t back by a few ticks; by more, an operator has gone back."""
    if stamp.run != run:
        return "what was saved is of another run"
    if stamp.t > t + max_ahead:
        return f"what was saved is of tick {stamp.t}, and the run has gone back to {t}"
    if t - stamp.t > max_age_steps:
        return f"what was saved is {t - stamp.t} ticks old, and {max_age_steps} are allowed"
    return ""
