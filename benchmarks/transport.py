"""How fast fragments travel: our whole stack with TLS, beside a bare TLS socket.

    python benchmarks/transport.py [--quick] [--json] [--record]

Two processes on loopback, each with a core of its own. One holds the syncer's side (`Door`, `Link`,
`Outbox`, `Assembly`, `Connection` on one `Loop`), the other the learners' (`Uplink` and the same below it,
all learners on one `Loop`). Bodies of 8 MiB go up as offers do, checked against their digest on arrival as
the syncer does, and come down as publishes do. The bare socket has one connection, blocking calls, slices
of 1 MiB and kept buffers, and does nothing with the bytes. All cases take turns in one run; a ratio is
taken turn by turn. M is the number of learners, connections are data connections of each of them, and CPU
is that of the syncer's process, all threads.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from subprocess import PIPE
from typing import Any

import torch
import xxhash
from hardware import hardware, median_and_spread, write_record
from torch import nn

from atoll import RunConfig
from atoll.core import messages as msg
from atoll.errors import AtollError
from atoll.numerics.manifest import Manifest
from atoll.numerics.partition import partition
from atoll.runtime.door import Door
from atoll.runtime.links import Link
from atoll.runtime.loop import Loop
from atoll.runtime.security.certificates import ServerIdentity
from atoll.runtime.security.identity import LearnerIdentity
from atoll.runtime.security.tls import client_context, server_context
from atoll.runtime.security.tokens import Tokens
from atoll.runtime.uplink import Events, Uplink
from atoll.wire import messages as wire
from atoll.wire.url import RunURL

AIM = 0.8
LEARNERS_CORE, SYNCER_CORE = 0, 1
BODY_BYTES = 8 << 20
SLICE = 1 << 20
CONNECTIONS = (1, 4)
LEARNERS = (1, 8, 32)
PATIENCE_S = 120.0
LIMIT = 1 << 40


@dataclass(frozen=True, slots=True)
class Case:
    """One row; no connections stands for the bare socket, which has one and no learners."""

    learners: int
    connections: int

    @property
    def name(self) -> str:
        """In the table."""
        if not self.connections:
            return "bare socket"
        return f"M={self.learners:<2d}, {self.connections} connection{'s' * (self.connections > 1)}"


CASES = (Case(0, 0), *(Case(m, c) for c in CONNECTIONS for m in LEARNERS))


@dataclass(eq=False)
class Count:
    """Counts bulk messages on a loop's thread; another thread waits for the last one."""

    missing: int = 0
    complete: threading.Event = field(default_factory=threading.Event)

    def expect(self, num: int) -> None:
        """Begin anew."""
        self.missing = num
        self.complete.clear() if num else self.complete.set()

    def one(self) -> None:
        """Another one is whole."""
        self.missing -= 1
        if not self.missing:
            self.complete.set()

    def wait(self) -> None:
        """Until all are here."""
        if not self.complete.wait(PATIENCE_S):
            sys.exit(f"{self.missing} bodies did not arrive within {PATIENCE_S:g} s")


# The syncer's process


@dataclass(eq=False)
class House:
    """What stands behind the door: lets everybody in, checks the digests of bodies, counts them."""

    count: Count
    links: dict[str, Link] = field(default_factory=dict)

    def admit_model(self, manifest: Manifest, then: Callable[[str], None]) -> None:
        """Any model will do."""
        then("")

    def num_links(self) -> int:
        """Learners connected now."""
        return len(self.links)

    def welcome(self, link: Link) -> None:
        """A learner is in."""
        link.expect(LIMIT, _size_of)
        link.on_message = self._message
        self.links[link.name] = link

    def status(self) -> bytes:
        """Nobody asks."""
        return b"{}"

    def finish(self, reason: str) -> str:
        """Nobody asks."""
        return ""

    def _message(self, link: Link, message: wire.Message, content: memoryview | None) -> None:
        if isinstance(message, msg.Body) and content is not None:
            assert xxhash.xxh3_128_hexdigest(content) == message.digest
            self.count.one()


class SyncerSide:
    """All of the syncer's process. Each order is a line of JSON, answered by one when it is done."""

    def __init__(self, folder: Path) -> None:
        identity, tokens = ServerIdentity.load_or_make(folder, "bench"), Tokens.load_or_make(folder)
        context = server_context(identity, False)
        self.loop, self.count = Loop("syncer"), Count()
        self.loop.start()
        self.houses = {connections: House(self.count) for connections in CONNECTIONS}
        ports = {}
        for connections, house in self.houses.items():
            tables = {"network": {"data_connections": connections}, "sync": {"num_fragments": 1}}
            door = Door(self.loop, "bench", RunConfig.from_tables(tables), tokens, context, house)
            ports[connections] = door.open("127.0.0.1", 0)[1]
        self.content = memoryview(bytearray(BODY_BYTES))
        listener = socket.create_server(("127.0.0.1", 0))
        place = {"ports": ports, "bare": listener.getsockname()[1]}
        _say({"fingerprint": identity.fingerprint, "token": tokens.join, **place})
        self.bare = context.wrap_socket(listener.accept()[0], server_side=True)

    def obey(self) -> None:
        """Until the other side closes the pipe."""
        for line in sys.stdin:
            order = json.loads(line)
            getattr(self, order.pop("do"))(**order)
            _say({"cpu_s": time.process_time()})

    def receive(self, num: int) -> None:
        """Over the bare socket."""
        _take(self.bare, num)

    def send(self, num: int) -> None:
        """Over the bare socket."""
        _give(self.bare, num, self.content)

    def expect(self, num: int) -> None:
        """That many bodies will come."""
        self.count.expect(num)

    def wait(self) -> None:
        """Until they have come; without bodies, at once."""
        self.count.wait()

    def publish(self, connections: int, learners: int, num: int, turn: int) -> None:
        """Send bodies to these learners in turn."""
        links = list(self.houses[connections].links.values())[:learners]
        for k in range(num):
            message = msg.Publish(1, 1, k, turn, turn, "", 0, "", "none", "", 0, BODY_BYTES)
            self.loop.call(links[k % learners].send, message, self.content)


def _give(sock: ssl.SSLSocket, num: int, content: memoryview) -> None:
    for _ in range(num):
        for at in range(0, len(content), SLICE):
            sock.sendall(content[at : at + SLICE])


def _take(sock: ssl.SSLSocket, num: int) -> None:
    buffer, missing = bytearray(SLICE), num * BODY_BYTES
    while missing:
        missing -= sock.recv_into(buffer, min(SLICE, missing))


def _size_of(message: wire.Bulk) -> int:
    return BODY_BYTES


def _say(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)


# The learners' process


class Learners:
    """Many uplinks to one door."""

    def __init__(self, loop: Loop, place: dict[str, Any], connections: int) -> None:
        self.count, self.is_up = Count(), Count()
        self.is_up.expect(LEARNERS[-1])
        url = RunURL("127.0.0.1", place["ports"][str(connections)], "bench", place["fingerprint"])
        context = client_context(None)
        self.uplinks = []
        for k in range(LEARNERS[-1]):
            name = f"learner-{k}"
            uplink = Uplink(loop, url, place["token"], name, context, self._events(name))
            self.uplinks.append(uplink)
            uplink.start()
        self.is_up.wait()
        while any(len(uplink.attached) < connections for uplink in self.uplinks):
            time.sleep(0.01)

    def _events(self, name: str) -> Events:
        identity = LearnerIdentity.load_or_make(None)
        manifest = partition(nn.Linear(2, 2), 1, "mean")
        text = json.dumps(manifest.to_dict()).encode()
        return Events(
            model=lambda accepted: wire.Model(
                text, manifest.digest, identity.public, identity.sign(accepted.challenge, name)
            ),
            ready=lambda ready: self.is_up.one(),
            message=lambda message, content: self.count.one() if content is not None else None,
            size_of=_size_of,
            failed=_failed,
            silent_s=lambda: PATIENCE_S,  # nobody beats here
            link=lambda is_up, reason: None,
        )


def _failed(error: AtollError) -> None:
    print(error, file=sys.stderr)


@dataclass(eq=False)
class Bench:
    """Both processes, and the transfers between them."""

    process: subprocess.Popen[str]
    learners: dict[int, Learners]
    bare: ssl.SSLSocket
    content: memoryview
    digest: str
    turn: int = 0

    def transfer(self, case: Case, num: int, *, up: bool) -> tuple[float, float]:
        """Move bodies; returns seconds, and the CPU seconds of the syncer's process."""
        self.turn += 1
        fleet = self.learners.get(case.connections)
        self._ask("expect", num=num if up else 0)
        cpu_s = self._answer()
        begin = time.perf_counter()
        if fleet is None:
            self._ask("receive" if up else "send", num=num)
            _give(self.bare, num, self.content) if up else _take(self.bare, num)
        elif up:
            self._ask("wait")
            for k in range(num):
                uplink = fleet.uplinks[k % case.learners]
                body = msg.Body(uplink.name, 1, 1, self.turn, k, self.digest, BODY_BYTES)
                uplink.bulk(body, self.content)
        else:
            fleet.count.expect(num)
            self._ask("publish", num=num, turn=self.turn, **asdict(case))
            fleet.count.wait()
        done_cpu_s = self._answer()
        seconds = time.perf_counter() - begin
        if not up:  # publishes leave on the loop, after the answer
            self._ask("expect", num=0)
            done_cpu_s = self._answer()
        return seconds, done_cpu_s - cpu_s

    def _ask(self, what: str, **values: int) -> None:
        assert self.process.stdin is not None
        print(json.dumps({"do": what, **values}), file=self.process.stdin, flush=True)

    def _answer(self) -> float:
        assert self.process.stdout is not None
        return float(json.loads(self.process.stdout.readline())["cpu_s"])


@contextmanager
def both_sides() -> Iterator[Bench]:
    """Start the syncer's process and connect everybody."""
    os.sched_setaffinity(0, {LEARNERS_CORE})
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--serve", folder]
        with subprocess.Popen(command, text=True, stdin=PIPE, stdout=PIPE) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            place = json.loads(process.stdout.readline())
            loop = Loop("learners")
            loop.start()
            fleets = {connections: Learners(loop, place, connections) for connections in CONNECTIONS}
            raw = socket.create_connection(("127.0.0.1", place["bare"]))
            bare = client_context(None).wrap_socket(raw)
            content = memoryview(os.urandom(BODY_BYTES))
            try:
                yield Bench(process, fleets, bare, content, xxhash.xxh3_128_hexdigest(content))
            finally:
                process.stdin.close()
                process.wait(30)
                loop.stop()


def measure(total_bytes: int, turns: int) -> dict[str, Any]:
    """All cases in turn; everything about them as one object."""
    num = max(LEARNERS[-1], total_bytes // BODY_BYTES)
    seconds: dict[tuple[str, bool], list[float]] = {}
    cpu: dict[tuple[str, bool], list[float]] = {}
    with both_sides() as bench:
        for turn in range(turns + 1):
            for case in CASES:
                for up in (True, False):
                    took, cpu_s = bench.transfer(case, num, up=up)
                    if turn:  # the first turn warms up
                        seconds.setdefault((case.name, up), []).append(took)
                        cpu.setdefault((case.name, up), []).append(cpu_s)
    gigabytes = num * BODY_BYTES / 1e9
    rows = []
    for (name, up), taken in seconds.items():
        bare = seconds[CASES[0].name, up]
        rows.append(
            {
                "case": name,
                "way": "up" if up else "down",
                "gb_per_s": median_and_spread([gigabytes / s for s in taken]),
                "of_bare": median_and_spread([b / s for b, s in zip(bare, taken, strict=True)]),
                "syncer_cpu_s_per_gb": median_and_spread([c / gigabytes for c in cpu[name, up]]),
            }
        )
    return {"hardware": hardware(), "turns": turns, "bytes": num * BODY_BYTES, "rows": rows}


def table_of(found: dict[str, Any]) -> str:
    """A report for people."""

    def cell(values: tuple[float, float, float]) -> str:
        median, low, high = values
        return f"{median:5.2f} ({low:.2f} .. {high:.2f})"

    lines = [
        f"{found['bytes'] >> 20} MiB per transfer in bodies of {BODY_BYTES >> 20} MiB; "
        f"median (smallest .. largest) of {found['turns']} turns; aim: {AIM} of bare",
        f"{'case':20s} {'way':5s} {'GB/s':22s} {'of bare':22s} syncer CPU s/GB",
    ]
    for row in found["rows"]:
        figures = [cell(row[key]) for key in ("gb_per_s", "of_bare", "syncer_cpu_s_per_gb")]
        lines.append(f"{row['case']:20s} {row['way']:5s} {figures[0]:22s} {figures[1]:22s} {figures[2]}")
    return "\n".join(lines)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    parser.add_argument("--record", action="store_true", help="keep the table in benchmarks/records/")
    parser.add_argument("--quick", action="store_true", help="256 MiB, 1 turn: does it run, not how fast")
    parser.add_argument("--mib", type=int, default=512, help="per transfer")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--serve", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.serve:
        os.sched_setaffinity(0, {SYNCER_CORE})
        SyncerSide(Path(options.serve)).obey()
        return
    if not {LEARNERS_CORE, SYNCER_CORE} <= os.sched_getaffinity(0):
        sys.exit(f"This needs cores {LEARNERS_CORE} and {SYNCER_CORE}, one for each process.")
    load = os.getloadavg()[0]
    mib, turns = (256, 1) if options.quick else (options.mib, options.turns)
    found = measure(mib << 20, turns)
    table = table_of(found)
    print(f"measured, load {load:.2f};", ", ".join(f"{k} {v}" for k, v in found["hardware"].items()))
    print(table)
    if options.record:
        print(f"kept in {write_record('Transport of fragments', table, load)}")
    if options.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
