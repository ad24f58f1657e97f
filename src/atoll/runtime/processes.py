"""Real processes on this machine: one syncer and M learners, looked after by the process that started them.

    fleet = Fleet(run_dir, config, recipe.settings(), speeds=[1.0, 0.5])
    fleet.start()
    while not fleet.is_over:
        fleet.wait(LOOK_S)
        fleet.look_after()      # restarts the dead
    fleet.stop()

Children come from a fork server that has torch imported (`forking`), and whoever dies is started again
(`keeping`); the syncer on its old port, so that its URL stays good. A fleet whose directory holds a run
already goes on with it: the syncer gets a new port, the learners its new URL. `events` records who was
killed and restarted, and when.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from atoll.config import RunConfig
from atoll.errors import StoreError
from atoll.recipes import recipe_from
from atoll.runtime import children
from atoll.runtime.children import Settings
from atoll.runtime.forking import OF_A_LEARNER, OF_A_SYNCER, in_child, prepare, warm_up
from atoll.runtime.keeping import (
    Child,
    Event,
    address_mark,
    listening_s,
    terminate,
    wait_for_an_end,
    wait_for_ends,
)
from atoll.wire.url import RunURL, parse

__all__ = ["SYNCER", "Event", "Fleet", "first_start", "gone", "in_child", "learner_names"]

SYNCER = "syncer"

START_S = 120.0
"""Longest wait for the syncer's first word."""
DOWN_S = 6.0
"""How long a learner that was killed on purpose stays dead: long enough to be missed, and seen. The syncer
is started again at once: how soon it is back is what its kill is to show."""
GOODBYE_S = 5.0
"""After the end of a run, for learners to end by themselves."""

OF_THE_JUDGE = ("atoll.runtime.export", "atoll.runtime.verdict")
LIBRARIES = {
    "tokens": ("transformers.models.gemma4.modeling_gemma4",),
    "images": ("transformers.models.vit.modeling_vit", "sklearn.datasets"),
}
"""By what a recipe counts."""


@dataclass(eq=False)
class Fleet:
    """A syncer and its learners as processes. For one thread."""

    run_dir: Path
    config: RunConfig
    settings: Settings
    """Of the recipe."""
    speeds: Sequence[float]
    """One per learner: 0.5 takes twice the time for each step."""
    down_s: float = DOWN_S
    accepts_loss: bool = False
    """Whether the syncer may go on, at its first start, without merges that its directory has lost."""
    url: str = ""
    events: list[Event] = field(default_factory=list)
    children: dict[str, Child] = field(default_factory=dict)

    def start(self) -> None:
        """Start the syncer, wait for its URL, start the learners. Raises what keeps it from starting."""
        (self.run_dir / "logs").mkdir(parents=True, exist_ok=True)
        self.warm_up()
        args = self._syncer_args(0, self.accepts_loss)
        syncer = Child(SYNCER, children.run_syncer, args, self.log_path(SYNCER))
        self.children[SYNCER] = syncer
        self.url = first_start(syncer, self.run_dir)
        where = parse(self.url)
        assert isinstance(where, RunURL)
        # What was lost is accepted once: if more is lost later, somebody should know.
        syncer.args = self._syncer_args(where.port, False)
        for name, speed in zip(learner_names(len(self.speeds)), self.speeds, strict=True):
            state_dir = str(self.run_dir / "learners" / name)
            learner = (dict(self.settings), self.url, str(self.run_dir), name, state_dir, speed)
            child = Child(name, children.run_own_learner, learner, self.log_path(name), self.down_s)
            self.children[name] = child
            child.start()

    def _syncer_args(self, port: int, accepts_loss: bool) -> tuple[object, ...]:
        return self.config.to_toml(), str(self.run_dir), port, "127.0.0.1", None, None, accepts_loss

    def warm_up(self) -> None:
        """Have torch and the model's library imported, for all children and for `in_child`."""
        library = LIBRARIES[recipe_from(self.settings).unit]
        prepare([*OF_A_SYNCER, *OF_A_LEARNER, *OF_THE_JUDGE, *library])
        warm_up()

    @property
    def is_over(self) -> bool:
        """Whether the run is finished: the syncer has seen everybody off and ended as it should."""
        return SYNCER in self.children and self.children[SYNCER].is_done

    @property
    def is_served(self) -> bool:
        """Whether the syncer listens, as far as anybody knows."""
        syncer = self.children.get(SYNCER)
        return syncer is not None and not syncer.is_down and listening_s(self.run_dir) > syncer.began_s

    def wait(self, patience_s: float) -> None:
        """Until somebody dies, but not longer than this."""
        wait_for_an_end(list(self.children.values()), patience_s)

    def look_after(self) -> None:
        """Notice who has died, and start again whose pause is over."""
        if not self.run_dir.is_dir():
            raise gone(self.run_dir)
        for child in self.children.values():
            self.events += child.look(time.time())

    def kill(self, name: str) -> bool:
        """Kill -9, as a power cut would; False if there is nobody to kill."""
        at_s = time.time()
        if not self.children[name].kill():
            return False
        self.events.append(Event(at_s, "killed", name, "kill -9"))
        return True

    def stop(self) -> None:
        """Stop everybody in order: learners say goodbye, the syncer closes, whoever is left is killed."""
        try:
            learners = [child for name, child in self.children.items() if name != SYNCER]
            if self.is_over:
                wait_for_ends(learners, GOODBYE_S)
            terminate(learners)
            terminate([child for name, child in self.children.items() if name == SYNCER])
        finally:
            for child in self.children.values():
                child.kill()

    def log_path(self, name: str) -> Path:
        """Where a child writes."""
        return self.run_dir / "logs" / f"{name}.log"


def learner_names(num_learners: int) -> list[str]:
    """What the learners of a fleet are called."""
    return [f"learner-{index}" for index in range(num_learners)]


def first_start(syncer: Child, run_dir: Path) -> str:
    """Start a syncer that nobody has seen running yet, and return its URL. Whatever ends it is raised."""
    before, deadline_s = address_mark(run_dir), time.monotonic() + START_S
    syncer.start()
    process = syncer.process
    assert process is not None
    while time.monotonic() < deadline_s:
        if address_mark(run_dir) != before:
            return (run_dir / "url").read_text(encoding="utf-8").strip()
        process.join(0.02)
        if process.exitcode is not None:
            raise syncer.given_up(process.exitcode)
    raise StoreError(
        f"The syncer was not ready within {START_S:g} s.",
        "Nobody could join.",
        f"Its log may say why: {syncer.log_path}" if syncer.log_path else "What it said stands above.",
    )


def gone(run_dir: Path) -> StoreError:
    """What to say when the run directory was deleted under a running run."""
    return StoreError(
        f"The run directory {run_dir} is gone: somebody deleted or moved it.",
        "Nothing more can be kept, so everybody was stopped.",
        "Move it back and resume, or start a new run.",
    )
