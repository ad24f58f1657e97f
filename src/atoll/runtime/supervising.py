"""A syncer that comes back by itself: `atoll syncer --supervise`.

A small parent, which imports no torch, keeps the syncer running as a child of a fork server that has imported
it. However the syncer dies, the next one is forked at once, on the same port, under the same URL and key;
learners, who never stopped training, find it again. It ends when the run is finished, when the parent is
asked to end (then the syncer closes in order), or when the syncer fails by its own fault again and again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from atoll.config import RunConfig
from atoll.runtime.children import run_syncer
from atoll.runtime.forking import OF_A_SYNCER, prepare, warm_up
from atoll.runtime.keeping import LOOK_S, Child, Event, listening_s, terminate, wait_for_an_end
from atoll.runtime.processes import SYNCER, first_start, gone
from atoll.wire.url import RunURL, parse

__all__ = ["Supervised"]


@dataclass(eq=False)
class Supervised:
    """One syncer that is kept running. `say` is given a line per restart."""

    config: RunConfig
    run_dir: Path
    name: str | None
    listen: str
    port: int
    advertise: str | None
    accepts_loss: bool
    say: Callable[[str], None]

    def run(self, on_listening: Callable[[str], None]) -> None:
        """Until the run is finished; its URL is told once. Leaves no process behind, whatever is raised."""
        prepare(OF_A_SYNCER)
        warm_up()
        child = Child(SYNCER, run_syncer, self._args(self.port, self.accepts_loss))
        try:
            url = first_start(child, self.run_dir)
            where = parse(url)
            assert isinstance(where, RunURL)
            # What was lost is accepted once: if more is lost later, somebody should know.
            child.args = self._args(where.port, False)
            on_listening(url)
            self._keep(child)
        finally:
            terminate([child])
            child.kill()

    def _args(self, port: int, accepts_loss: bool) -> tuple[object, ...]:
        place = str(self.run_dir)
        return self.config.to_toml(), place, port, self.listen, self.name, self.advertise, accepts_loss

    def _keep(self, child: Child) -> None:
        death: Event | None = None
        while not child.is_done:
            wait_for_an_end([child], LOOK_S)
            if not self.run_dir.is_dir():
                raise gone(self.run_dir)
            for event in child.look(time.time()):
                if event.kind == "died":
                    if death is not None:
                        self.say(f"the syncer died ({death.reason}), and again before it listened")
                    death = event
            if death is not None and listening_s(self.run_dir) > death.at_s:
                after_s = listening_s(self.run_dir) - death.at_s
                self.say(f"the syncer died ({death.reason}) and listens again after {after_s:.1f} s")
                death = None
