"""One run of the kill matrix: real processes, one of which dies at a named point, and what happened then.

    a syncer and three learners train; the victim dies at its point by SIGKILL; the others are seen to
    step on while it is dead; it is started again; when it takes part again the run is finished in order.

The parent only waits for things to happen, in this order, and for each with a deadline of minutes that ends a
run that hangs. Time decides nothing.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from atoll.core.records import Record, RoundRecord
from atoll.errors import AtollError
from atoll.runtime import children
from atoll.runtime.reader import StatusClient
from atoll.runtime.store import read_run
from tests.chaos import kill_programs
from tests.chaos.kill_checks import problems_of
from tests.chaos.kill_programs import LEARNERS, NUM_FRAGMENTS, Board, Trap
from tests.integration.conditions import wait_until

__all__ = ["Row", "prepare", "run_point"]

SYNCER = "syncer"
VICTIM = LEARNERS[-1]
PATIENCE_S = 240.0
"""Ends a run that hangs; a run takes seconds."""
STEPS_ON = 3
"""Steps that every survivor is seen to take while the victim is dead."""
COMING_UP = ("L0", "L1", "L2", "L3", "L4", "S0", "S1", "S2")
"""Points on the way back in: the victim was killed in mid-run before, and dies again here."""
BEGINNING = {"S3": len(LEARNERS), "S4": NUM_FRAGMENTS // 2}
"""Points that only a new run has, and the time of reaching them."""
HALF_WAY = {"L3": NUM_FRAGMENTS // 2, "S11": NUM_FRAGMENTS // 2}
"""Points that are half way at this time of reaching them."""
PRELOAD = [
    "torch",
    "torch._dynamo",
    "atoll.runtime.joining",
    "atoll.runtime.syncer",
    "tests.chaos.kill_programs",
]


@dataclass(frozen=True, slots=True)
class Row:
    """What one run showed."""

    point: str
    how_killed: str
    back_s: float
    """From the victim's new process to its taking part: for people, not a verdict."""
    num_merges: int
    num_checks: int
    problems: list[str]

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.problems


def prepare() -> None:
    """Tell the fork server what to import; has an effect until its first child only."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOAD)


def run_point(point: str, folder: Path, later: int = 0) -> Row:
    """Kill at a point, in a new run below `folder`; `later` times later than the first time in mid-run."""
    run = _Run(point, folder / point.lower(), later)
    try:
        return run.through()
    except (AssertionError, AtollError) as error:
        words = "; ".join(f"{name}: {run.last_words(name)}" for name in (*LEARNERS, SYNCER))
        return Row(point, "no", 0.0, 0, 0, [f"{error} ({words})"])
    finally:
        run.clear_up()


def _reserve() -> socket.socket:
    """A port that only a socket which names it can have: bound, and never listened on."""
    place = socket.socket()
    place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    place.bind(("127.0.0.1", 0))
    return place


@dataclass(eq=False)
class _Run:
    point: str
    run_dir: Path
    later: int
    board: Board = field(default_factory=Board)
    lives: dict[str, Any] = field(default_factory=dict)
    place: socket.socket = field(default_factory=_reserve)
    """Keeps the port, so that nobody else gets it while the syncer is dead."""

    @property
    def victim(self) -> str:
        return VICTIM if self.point.startswith("L") else SYNCER

    def through(self) -> Row:
        self._bring_up()
        if self.point in COMING_UP:
            self._wait(self._all_take_part, "not everybody took part")
            self._kill_by_hand()
            self._see_the_others_go_on()
            self._start(self.victim, Trap(self.point, HALF_WAY.get(self.point, 1), at_once=True))
        elif self.point not in BEGINNING:
            self._wait(self._all_take_part, "not everybody took part")
            self.board.go[0] = 1
        self._wait(lambda: self._code(self.victim) is not None, f"{self.point} was never reached")
        how = self._code(self.victim)
        assert how == -signal.SIGKILL, f"{self.victim} was not killed: exit code {how}"
        self._see_the_others_go_on()
        back_s = self._bring_back()
        self._finish()
        checks, problems = problems_of(self.run_dir, VICTIM if self.victim == VICTIM else None)
        return Row(self.point, "kill -9", back_s, len(self._merges()), checks, problems)

    def _bring_up(self) -> None:
        for name in LEARNERS:
            (self.run_dir / "learners" / name).mkdir(parents=True)
        times = BEGINNING.get(self.point)
        if times is not None:
            self._start(SYNCER, Trap(self.point, times, at_once=True))
        else:
            self._start(SYNCER, self._trap() if self.victim == SYNCER else None)
        self._wait(lambda: (self.run_dir / "url").exists(), "the syncer did not listen")
        for name in LEARNERS:
            self._start(name, self._trap() if self.victim == name else None)

    def _trap(self) -> Trap | None:
        """For a first life that dies in mid-run."""
        if self.point in COMING_UP:
            return None
        if self.point == "L13":  # reached once, when the victim leaves, which it does when it is time
            return Trap(self.point, at_once=True)
        return Trap(self.point, HALF_WAY.get(self.point, 1) + self.later)

    def _kill_by_hand(self) -> None:
        self.lives[self.victim].kill()
        self._wait(lambda: self._code(self.victim) is not None, f"{self.victim} does not die")

    def _see_the_others_go_on(self) -> None:
        """Whoever has weights steps on, now that the victim is dead: nobody waits for it."""
        before = list(self.board.steps)
        going = [i for i, name in enumerate(LEARNERS) if name != self.victim and before[i]]
        assert going or self.point in BEGINNING, "nobody was training"
        self._wait(
            lambda: all(self.board.steps[i] >= before[i] + STEPS_ON for i in going),
            "a survivor stopped stepping",
        )

    def _bring_back(self) -> float:
        epoch = max((record.epoch for record in self._records()), default=0)
        if self.victim != SYNCER:
            self.board.incarnations[LEARNERS.index(self.victim)] = 0
        self._start(self.victim, None)
        began_s = time.monotonic()
        if self.victim == SYNCER:
            self._wait(lambda: self._contributors(epoch + 1) >= set(LEARNERS), "not all came back")
        else:
            self._wait(self._is_back, f"{self.victim} had no offer merged after its return")
        return time.monotonic() - began_s

    def _is_back(self) -> bool:
        incarnation = self.board.incarnations[LEARNERS.index(self.victim)]
        mine = {(part.name, part.incarnation) for record in self._merges() for part in record.contributors}
        return incarnation > 0 and (self.victim, incarnation) in mine

    def _all_take_part(self) -> bool:
        return self._contributors(1) >= set(LEARNERS)

    def _contributors(self, since_epoch: int) -> set[str]:
        merges = [record for record in self._merges() if record.epoch >= since_epoch]
        return {part.name for record in merges for part in record.contributors}

    def _merges(self) -> list[RoundRecord]:
        return [record for record in self._records() if isinstance(record, RoundRecord)]

    def _records(self) -> tuple[Record, ...]:
        try:
            return read_run(self.run_dir).records
        except AtollError:  # not made yet
            return ()

    def _finish(self) -> None:
        url = (self.run_dir / "url").read_text(encoding="utf-8").strip()
        admin = (self.run_dir / "tokens" / "admin.token").read_text(encoding="utf-8").strip()
        with StatusClient(url, admin, timeout_s=PATIENCE_S) as client:
            client.finish("the matrix has seen enough")
        names = (*LEARNERS, SYNCER)
        self._wait(lambda: all(self._code(name) is not None for name in names), "the run does not end")
        codes = {name: self._code(name) for name in names}
        assert not any(codes.values()), f"not everybody ended in order: {codes}"

    # Processes

    def _start(self, name: str, trap: Trap | None) -> None:
        what: Callable[..., None] = kill_programs.syncer if name == SYNCER else kill_programs.learner
        who = self.place.getsockname()[1] if name == SYNCER else name
        args = (str(self.run_dir), who, trap, self.board)
        log = str(self.run_dir.with_name(f"{self.run_dir.name}-{name}.log"))
        process = multiprocessing.get_context("forkserver").Process(
            target=children.enter, args=(name, log, what, args), daemon=True
        )
        with _one_at_a_time:
            process.start()
        self.lives[name] = process

    def _code(self, name: str) -> int | None:
        with _one_at_a_time:
            code: int | None = self.lives[name].exitcode
            return code

    def _wait(self, condition: Callable[[], bool], otherwise: str) -> None:
        """Until it happens; at once not, if somebody ends who should not."""
        try:
            wait_until(lambda: condition() or self._failed(), PATIENCE_S)
        except AssertionError:
            raise AssertionError(otherwise) from None
        assert condition() or not self._failed(), f"{otherwise}: {self._failed()}"

    def _failed(self) -> str:
        codes = {name: self._code(name) for name in self.lives}
        return ", ".join(f"{name} ended with {code}" for name, code in codes.items() if code and code > 0)

    def last_words(self, name: str) -> str:
        path = self.run_dir.with_name(f"{self.run_dir.name}-{name}.log")
        with contextlib.suppress(OSError):
            return path.read_text(encoding="utf-8", errors="replace")[-300:].strip()
        return ""

    def clear_up(self) -> None:
        for name, process in self.lives.items():
            if self._code(name) is None:
                process.kill()
        self.place.close()


_one_at_a_time = threading.Lock()
"""Several runs go on at once, and `multiprocessing` looks after all children whenever one is started: two
threads that read the end of the same child would tell one of them a wrong exit code."""
