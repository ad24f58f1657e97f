"""Carries out a plan of faults on a world, and counts those that changed something."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from atoll.core.events import LeaveRequested
from atoll.core.records import fold
from atoll.sim.faults import NETWORK_KINDS, PlannedFault
from atoll.sim.network import DOWN, UP, Direction, Trouble
from atoll.sim.process import LearnerProcess, SyncerProcess
from atoll.tape.entries import SYNCER, Fault, Stored

if TYPE_CHECKING:
    from atoll.sim.world import World

__all__ = ["Injector"]


class Injector:
    """Strikes at the times and phases of a plan, until told to heal."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self.world = world
        self.rng = rng
        self.armed: list[PlannedFault] = []
        self.troubles: list[tuple[Direction, Trouble]] = []
        self.is_over = False
        self.disk_slowdown = 1.0
        self.counted_disk: dict[str, tuple[str, str]] = {}
        self.dead: dict[int, int] = {}
        """Learner -> number of its restarts that are due."""
        self.syncer_is_down = False

    def arm(self, plan: Sequence[PlannedFault]) -> None:
        """Put a plan on the calendar."""
        for fault in plan:
            self.world.engine.at(fault.at_ns, self._due, fault)

    def _due(self, fault: PlannedFault) -> None:
        if self.is_over:
            return
        if not fault.phase or fault.phase in self.world.phases():
            self._strike(fault, fault.phase or self.rng.choice(self.world.phases()))
        else:
            self.armed.append(fault)

    def look(self) -> None:
        """Called after each event of the syncer: strike what waited for this phase."""
        if not self.armed or self.is_over:
            return
        phases = self.world.phases()
        ready = [fault for fault in self.armed if fault.phase in phases]
        if ready:
            self.armed = [fault for fault in self.armed if fault.phase not in phases]
            for fault in ready:
                self._strike(fault, fault.phase)

    # Striking

    def _strike(self, fault: PlannedFault, phase: str) -> None:
        cell = (fault.kind, phase)
        if fault.kind in NETWORK_KINDS:
            self._trouble(fault, cell)
        elif fault.kind in ("syncer-crash", "lost-write", "torn-write", "rollback"):
            self._crash_syncer(fault, cell)
        elif fault.kind == "syncer-pause":
            self._pause(self.world.syncer, fault, cell)
        elif fault.kind in ("disk-full", "log-failure", "slow-disk"):
            self._disk(fault, cell)
        else:
            self._hit_learner(fault, cell)

    def _hit_learner(self, fault: PlannedFault, cell: tuple[str, str]) -> None:
        living = [p for p in self.world.living() if is_fit(p)]
        if not living:
            return
        process = living[fault.target % len(living)]
        if fault.kind == "learner-crash":
            self._crash_learner(process, fault, cell)
        elif fault.kind == "learner-pause":
            self._pause(process, fault, cell)
        elif fault.kind == "learner-slow":
            self._slow(process, fault, cell)
        elif fault.kind == "poison":
            self._poison(process, fault, cell)
        elif process.machine.state == "joined":
            self._say(fault, process.name)
            if fault.kind == "learner-leave":
                self.world.struck[cell] += 1
                process.handle(LeaveRequested(self.world.engine.now_ns))
                process.die()
                self._restart_later(index_of(process), fault.duration_ns)
            else:
                self._double(process, fault, cell)

    def _double(self, process: LearnerProcess, fault: PlannedFault, cell: tuple[str, str]) -> None:
        """A second process of the same name; it counts once it is admitted."""
        double = self.world.start_learner(index_of(process), "key" if fault.kind == "twin" else "other-key")

        def look() -> None:
            if double.machine.incarnation:
                self.world.struck[cell] += 1

        self.world.engine.after(8 * process.step_ns, look)

    def _crash_learner(self, process: LearnerProcess, fault: PlannedFault, cell: tuple[str, str]) -> None:
        def crash() -> None:
            if process.is_alive:
                self._say(fault, process.name)
                self.world.struck[cell] += 1
                process.die()
                self._restart_later(index_of(process), fault.duration_ns)

        if fault.fuse >= 0:
            process.fuse, process.on_fuse = fault.fuse, crash
        else:
            crash()

    def _restart_later(self, m: int, delay_ns: int) -> None:
        self.dead[m] = self.dead.get(m, 0) + 1
        self.world.engine.after(delay_ns, self._restart, m)

    def _restart(self, m: int) -> None:
        if self.dead.get(m):
            self.dead[m] -= 1
            if not any(index_of(p) == m and is_fit(p) for p in self.world.living()):
                self.world.start_learner(m)

    def supervise(self, process: LearnerProcess) -> None:
        """A life ended by a verdict (fenced, refused): if nobody else bears the name, start anew."""
        process.die()
        self._restart_later(index_of(process), 2 * process.step_ns)

    def _pause(
        self, process: LearnerProcess | SyncerProcess | None, fault: PlannedFault, cell: tuple[str, str]
    ) -> None:
        if process is None or not process.is_alive:
            return

        def deferred() -> None:
            process.on_deferred = None
            self._say(fault, process.actor)
            self.world.struck[cell] += 1

        process.on_deferred = deferred
        process.pause(fault.duration_ns)

    def _slow(self, process: LearnerProcess, fault: PlannedFault, cell: tuple[str, str]) -> None:
        def slowed() -> None:
            process.on_slowed = None
            self._say(fault, process.name)
            self.world.struck[cell] += 1

        def normal() -> None:
            process.slowdown = 1.0

        process.slowdown, process.on_slowed = 2 + 6 * fault.strength, slowed
        self.world.engine.after(fault.duration_ns * 2, normal)

    def _poison(self, process: LearnerProcess, fault: PlannedFault, cell: tuple[str, str]) -> None:
        def poisoned() -> None:
            process.on_poisoned = None
            self._say(fault, process.name)
            self.world.struck[cell] += 1

        def cured() -> None:
            process.poison = ""

        process.poison, process.on_poisoned = ("nan" if fault.strength < 0.7 else "huge"), poisoned
        self.world.engine.after(fault.duration_ns * 2, cured)

    def _crash_syncer(self, fault: PlannedFault, cell: tuple[str, str]) -> None:
        syncer = self.world.syncer
        if syncer is None or not syncer.is_alive:
            return

        def crash() -> None:
            if not syncer.is_alive:
                return
            damage = syncer.power_loss(lose=fault.kind == "lost-write", tear=fault.kind == "torn-write")
            hurt = {
                "lost-write": damage.num_records_lost + damage.num_files_lost + damage.num_writes_lost,
                "torn-write": damage.num_files_torn + damage.num_writes_lost,
            }
            self.world.struck[fault.kind if hurt.get(fault.kind) else "syncer-crash", cell[1]] += 1
            detail = f"{damage.num_records_lost} records lost, {damage.num_files_torn} files torn"
            self._say(fault, "syncer", detail)
            self.syncer_is_down = True
            if fault.kind == "rollback":
                self.world.engine.after(fault.duration_ns // 2, self._roll_back, fault, cell)
            self.world.engine.after(fault.duration_ns, self._boot_syncer)

        if fault.fuse >= 0:
            syncer.fuse, syncer.on_fuse = fault.fuse, crash
        else:
            crash()

    def _roll_back(self, fault: PlannedFault, cell: tuple[str, str]) -> None:
        """An operator, while the syncer is down: back by at most two cycles of the fragments."""
        world = self.world
        if not self.syncer_is_down:
            return
        now_t = fold(world.disk.records).t
        reach = 1 + int(2 * fault.strength * world.scenario.params.interval_steps)
        record = world.disk.go_back(max(0, now_t - reach))
        if record is not None:
            self._say(fault, "syncer", f"from tick {now_t} to {record.t}")
            world.struck[cell] += 1
            world.tape.add(world.engine.now_ns, SYNCER, Stored(record, True))

    def _boot_syncer(self) -> None:
        if self.syncer_is_down:
            self.syncer_is_down = False
            self.world.boot_syncer()

    def _disk(self, fault: PlannedFault, cell: tuple[str, str]) -> None:
        world = self.world
        if fault.kind in self.counted_disk:
            return
        self.counted_disk[fault.kind] = cell
        if fault.kind == "disk-full":
            world.disk.is_full = True
        elif fault.kind == "log-failure":
            world.disk.fails_commits = True
        else:
            self._set_disk_slowdown(5 + 45 * fault.strength)

        def over() -> None:
            self.counted_disk.pop(fault.kind, None)
            if fault.kind == "disk-full":
                world.disk.is_full = False
            elif fault.kind == "log-failure":
                world.disk.fails_commits = False
            else:
                self._set_disk_slowdown(1.0)

        world.engine.after(fault.duration_ns, over)

    def _set_disk_slowdown(self, factor: float) -> None:
        self.disk_slowdown = factor
        if self.world.syncer is not None:
            self.world.syncer.disk_slowdown = factor

    def _write_refused(self) -> None:
        self._disk_struck("disk-full" if self.world.disk.is_full else "log-failure")

    def _disk_struck(self, kind: str) -> None:
        cell = self.counted_disk.get(kind)
        if cell is not None and cell != ("", ""):
            self.counted_disk[kind] = ("", "")
            self.world.struck[cell] += 1
            self.world.tape.add(self.world.engine.now_ns, "world", Fault(kind, "disk", ""))

    def dress_syncer(self, syncer: SyncerProcess) -> None:
        """Hang the counters onto a new syncer process."""
        syncer.disk_slowdown = self.disk_slowdown
        syncer.on_disk_slow = lambda: self._disk_struck("slow-disk")
        syncer.on_disk_full = self._write_refused
        syncer.on_handled = self.look

    def _trouble(self, fault: PlannedFault, cell: tuple[str, str]) -> None:
        links = self.world.network.links
        names = sorted(links)
        many = fault.strength > 0.8
        chosen = names if many else [names[fault.target % len(names)]]
        ways: tuple[str, ...] = (UP, DOWN)
        if fault.kind == "one-way" or (fault.kind != "partition" and fault.fuse >= 0):
            ways = (UP,) if fault.target & 1 else (DOWN,)
        strength = 0.1 + 0.5 * fault.strength
        if fault.kind == "thin-link":
            strength = 3 + 20 * fault.strength
        trouble = Trouble(fault.kind, strength, cell=cell)
        self._say(fault, ",".join(chosen), "/".join(ways))
        directions = [links[name].direction(way) for name in chosen for way in ways]
        for direction in directions:
            self.world.network.trouble(direction, trouble, begins=True)
            self.troubles.append((direction, trouble))
        self.world.engine.after(fault.duration_ns, self._end_trouble, trouble)

    def _end_trouble(self, trouble: Trouble) -> None:
        for direction, one in self.troubles:
            if one is trouble:
                self.world.network.trouble(direction, one, begins=False)
        self.troubles = [pair for pair in self.troubles if pair[1] is not trouble]

    # Healing

    def heal(self) -> None:
        """End every fault; start whatever is down."""
        self.is_over = True
        world = self.world
        for direction, trouble in self.troubles:
            world.network.trouble(direction, trouble, begins=False)
        self.troubles = []
        world.disk.is_full = world.disk.fails_commits = False
        self._set_disk_slowdown(1.0)
        self._boot_syncer()
        for process in world.everybody():
            process.fuse = -1
            process.wake()
        for group in world.learners.values():
            fit = [p for p in group if is_fit(p)]
            for process in group:
                process.slowdown, process.poison = 1.0, ""
                if len(fit) != 1 or process is not fit[0]:
                    process.die()
        for m in range(world.scenario.num_learners):
            if not any(index_of(p) == m for p in world.living()):
                world.start_learner(m)

    def _say(self, fault: PlannedFault, target: str, detail: str = "") -> None:
        self.world.tape.add(self.world.engine.now_ns, "world", Fault(fault.kind, target, detail))


def is_fit(process: LearnerProcess) -> bool:
    """Alive, and not told to stop."""
    return process.is_alive and process.machine.state in ("joining", "joined")


def index_of(process: LearnerProcess) -> int:
    """Which learner this is a life of."""
    return int(process.name.rpartition("-")[2])
