"""A run of some hundred operations, recorded: what happens to a store between its first day and its last.

Learners join, fragments are merged, snapshots are taken and old files deleted, tape lines come between. The
syncer is closed and started again, killed and started again, and once the power goes: then what the disk
held goes on as another folder, where outside `merge` durability some versions are lost and rolled back.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from atoll.config import RunConfig, TapeConfig
from atoll.core.params import Durability
from atoll.core.records import EpochRecord
from atoll.numerics.outer import OuterState
from atoll.runtime.store import RunStore
from atoll.tape.entries import Entry, Image
from tests.crash.disk import Disk, Moment, RecordedFiles
from tests.crash.image import draw_without
from tests.crash.syncer import Promise, Syncer, recorded
from tests.unit.runtime.store.driver import config, line

__all__ = ["RUN", "Story", "tell", "tell_of_cuts"]

RUN = "run"
"""The run directory, below the root of a disk."""
NUM_ACTS = 24
IMAGE_BYTES = 550_000
"""Two images of a machine are more tape than is kept."""


@dataclass(slots=True, repr=False)
class Story:
    """The moments of a recorded run, and every version that it ever had."""

    config: RunConfig
    files: Callable[[Disk], RecordedFiles] = RecordedFiles
    kind: type[RunStore] = RunStore
    moments: list[Moment] = field(default_factory=list)
    past: dict[tuple[int, str], OuterState] = field(default_factory=dict)
    rollbacks: int = 0
    """How many fragments were rolled back after the power cut."""

    @property
    def mode(self) -> Durability:
        return self.config.durability.mode

    def boot(self, root: Path, promise: Promise, disk: Disk | None = None, after_power_cut=True) -> Syncer:
        """Start a syncer on the run below a root."""
        files = self.files(disk) if disk is not None else None
        return Syncer.boot(root / RUN, self.config, self.past, promise, files, after_power_cut, self.kind)


def tell(story: Story, folder: Path) -> Story:
    """Record a run; the same settings give the same story."""
    dice = random.Random(story.mode)
    with recorded(_made(folder / "first")) as disk:
        syncer = story.boot(disk.root, Promise(), disk)
        syncer.seed()
        syncer = _live(story, syncer, disk, dice)
        syncer.round(0)
        for p in (0, 1, 1, 0):
            syncer.round(p, sync=story.mode == "merge")
        disk.settle()
        _kill(syncer)
    story.moments += disk.moments
    with recorded(draw_without(disk.moments[-1], "deltas", folder / "second")) as disk:
        syncer = story.boot(disk.root, syncer.promise, disk)
        epoch = syncer.records[-1]
        assert isinstance(epoch, EpochRecord)
        story.rollbacks = len(epoch.rollbacks)
        syncer = _live(story, syncer, disk, dice)
        syncer.close()
    story.moments += disk.moments
    return story


def tell_of_cuts(folder: Path) -> Story:
    """A short run whose tape is cut, with the records that it led to, whenever there is more than is kept."""
    story = Story(replace(config(), tape=TapeConfig(keep_mb=1)))
    with recorded(_made(folder / "first")) as disk:
        syncer = story.boot(disk.root, Promise(), disk)
        syncer.seed()
        for number in range(1, 5):
            for p in (0, 1, 0):
                syncer.round(p)
            image = Image(syncer.num_rounds, random.Random(number).randbytes(IMAGE_BYTES))
            syncer.write(Entry(1, "syncer", image))
            syncer.snapshot()
        syncer.round(1)
        syncer.close()
    story.moments += disk.moments
    return story


def _live(story: Story, syncer: Syncer, disk: Disk, dice: random.Random) -> Syncer:
    """Rounds and what else happens to a syncer; returns the one that is alive in the end."""
    for number in range(1, NUM_ACTS + 1):
        is_cycle_done = story.mode == "cycle" and sum(syncer.versions) % 2 == 1
        syncer.round(dice.randrange(2), sync=story.mode == "merge" or is_cycle_done)
        if dice.random() < 0.3:
            syncer.write(line(f"line {number}"))
        if number % 6 == 0:
            syncer.snapshot()
        if number % 10 == 0:
            syncer.admit(f"learner-{number}")
        if number in (NUM_ACTS // 3, NUM_ACTS // 2):
            if number == NUM_ACTS // 2:
                syncer.close()
            else:
                _kill(syncer)
            syncer = story.boot(disk.root, syncer.promise, disk, after_power_cut=False)
    return syncer


def _kill(syncer: Syncer) -> None:
    """The process is gone: the kernel drops its lock, and nobody closes the database."""
    _killed.append(syncer)
    assert isinstance(syncer.store, RunStore)
    assert syncer.store._lock is not None
    syncer.store._lock.release()


_killed: list[Syncer] = []
"""Kept, or their databases would be closed in an orderly way."""


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder
