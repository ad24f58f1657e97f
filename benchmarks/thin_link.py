"""Heartbeats on a link that is full: a syncer and a learner joined by 10 Mbit/s, with bulk data filling it.

    sudo python benchmarks/thin_link.py [--quick] [--json] [--record]

Two network namespaces are joined by a veth pair; `tc tbf` lets 10 Mbit/s through each way, behind a queue of
400 ms such as a cheap router has. The syncer runs in one, a learner in the other, both as a user would run
them. The model's fragments are due faster than the link carries them, so that offers fill it one way and
publishes the other. Both sides keep a tape; from these come the longest time between two reports heard by
the syncer and two beats heard by the learner, and, as both have the same clock here, how long beats
travelled. A beat is sent every 0.25 s, a report after every step of 50 ms. Namespaces and links are removed
at the end, whatever happens.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from subprocess import PIPE
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from hardware import hardware, write_record
from torch import nn

from atoll import RunConfig, Syncer, join
from atoll.core import events as ev
from atoll.core import messages as msg
from atoll.runtime.store.view import read_run
from atoll.runtime.tape_file import TapeFile
from atoll.tape.entries import Entry

AIM_S = 1.0
RATE = "10mbit"
QUEUE = "400ms"
STEP_S = 0.05
WARM_UP_S = 3.0
"""After the first offer, for slow start and the first publishes."""
TABLES = {
    "sync": {"num_fragments": 8, "interval_steps": 40, "heartbeat_s": 0.25, "alive_s": 3.0, "retry_s": 2.0},
}
WIDTH = 1448  # of a square matrix: 4.2 MB per cycle of 2 s each way, and the link carries 2.5


# The two programs


def serve(folder: Path) -> None:
    """The syncer, until the pipe is closed."""
    config = RunConfig.from_tables(TABLES)
    with Syncer(config, folder / "thin", listen="10.71.0.1") as syncer:
        print(json.dumps({"url": syncer.url, "token": syncer.token}), flush=True)
        sys.stdin.read()


def learn(folder: Path, url: str, token: str, seconds: float) -> None:
    """The learner: its weights wander, as a gradient would make them, at a steady pace."""
    torch.manual_seed(0)
    model = nn.Linear(WIDTH, WIDTH, bias=False)
    noise = 1e-3 * torch.randn(WIDTH, WIDTH)
    learner = join(url, model=model, token=token, state_dir=folder / "learner", name="thin", timeout_s=120)
    end = time.monotonic() + seconds
    while (begin := time.monotonic()) < end:
        with torch.no_grad():
            model.weight.add_(noise)
        learner.step(tokens=1)
        time.sleep(max(0.0, STEP_S - (time.monotonic() - begin)))
    learner.leave()


# The network


@contextmanager
def thin_network() -> Iterator[tuple[str, str]]:
    """Two namespaces with a thin link between them; gives their names and removes them in any case."""
    names = (f"atoll-{os.getpid()}-syncer", f"atoll-{os.getpid()}-learner")
    try:
        for name in names:
            _run("ip", "netns", "add", name)
        far = ("peer", "name", "thin", "netns", names[1])
        _run("ip", "link", "add", "thin", "netns", names[0], "type", "veth", *far)
        for number, name in enumerate(names, start=1):
            _run("ip", "-n", name, "address", "add", f"10.71.0.{number}/24", "dev", "thin")
            _run("ip", "-n", name, "link", "set", "thin", "up")
            _run("ip", "-n", name, "link", "set", "lo", "up")
            shape = ("rate", RATE, "burst", "16kb", "latency", QUEUE)
            _run("tc", "-n", name, "qdisc", "add", "dev", "thin", "root", "tbf", *shape)
        yield names
    finally:
        for name in names:  # the veth pair goes with them
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"The thin link cannot be built: `{' '.join(command)}` says: {done.stderr.strip()}")


def why_not() -> str:
    """What keeps this benchmark from running here, or ""."""
    if sys.platform != "linux":
        return "Network namespaces exist on Linux only."
    if os.geteuid():
        return "Making network namespaces needs root: run it with sudo."
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    return f"{' and '.join(missing)} cannot be found: install iproute2." if missing else ""


Sample = tuple[int, int, int]
"""A time, and the bytes that each side has sent by then, syncer first."""


def sample(names: tuple[str, str]) -> Sample:
    """What has gone through the link up to now, headers of packets included."""
    sent = []
    for name in names:
        command = ["ip", "-n", name, "-s", "-j", "link", "show", "thin"]
        found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        sent.append(int(found[0]["stats64"]["tx"]["bytes"]))
    return time.monotonic_ns(), sent[0], sent[1]


def run(folder: Path, seconds: float) -> list[Sample]:
    """Both programs on the thin link, until the learner has left; the link is read every second."""
    samples = []
    with ExitStack() as stack:
        names = stack.enter_context(thin_network())

        def start(name: str, *options: str) -> subprocess.Popen[str]:
            command = [
                "ip",
                "netns",
                "exec",
                name,
                sys.executable,
                __file__,
                "--folder",
                str(folder),
                *options,
            ]
            process = subprocess.Popen(command, text=True, stdin=PIPE, stdout=PIPE)
            stack.callback(process.wait)
            stack.callback(process.terminate)
            return process

        syncer = start(names[0], "--role", "syncer")
        assert syncer.stdin is not None
        assert syncer.stdout is not None
        line = syncer.stdout.readline()
        if not line:
            sys.exit("The syncer did not start; see above.")
        place = json.loads(line)
        how = ("--url", place["url"], "--token", place["token"], "--seconds", str(seconds))
        learner = start(names[1], "--role", "learner", *how)
        for _ in range(int(seconds + 240)):
            if learner.poll() is not None:
                break
            samples.append(sample(names))
            time.sleep(1.0)
        if learner.poll() != 0:
            sys.exit("The learner did not get to the end; see above.")
        syncer.stdin.close()
        syncer.wait(60)
    return samples


# What the tapes say


def judge(folder: Path, samples: list[Sample]) -> dict[str, Any]:
    """Intervals, delays and throughput while the link was full."""
    at_syncer = _received(read_run(folder / "thin").entries())
    tape = TapeFile(next((folder / "learner").glob("tape-*.db")))
    at_learner = _received(tape.read())
    tape.close()
    first = next((at for at, message in at_syncer if isinstance(message, msg.Header)), 0)
    last = next((at for at, message in at_syncer if isinstance(message, msg.Leave)), 0)
    begin = first + int(WARM_UP_S * 1e9)
    if not first or last < begin + 2e9:
        sys.exit("The run was over before the link was full: give it more --seconds.")
    reports = [at for at, message in at_syncer if isinstance(message, msg.Report) and begin <= at <= last]
    beats = [(at, beat) for at, beat in at_learner if isinstance(beat, msg.Beat) and begin <= at <= last]
    return {
        "hardware": hardware(),
        "seconds": (last - begin) / 1e9,
        "between_s": {
            "reports": _gaps(reports, begin, last),
            "beats": _gaps([at for at, _ in beats], begin, last),
        },
        "beat_delay_s": sorted((at - beat.sent_ns) / 1e9 for at, beat in beats),
        "mbit_per_s": _throughput([one for one in samples if begin <= one[0] <= last]),
        "bodies": sum(isinstance(message, msg.Body) for _, message in at_syncer),
        "publishes": sum(isinstance(message, msg.Publish) for _, message in at_learner),
    }


def _throughput(samples: list[Sample]) -> dict[str, float]:
    seconds = (samples[-1][0] - samples[0][0]) / 1e9
    down, up = ((samples[-1][k] - samples[0][k]) * 8 / 1e6 / seconds for k in (1, 2))
    return {"up": up, "down": down}


def _received(entries: Iterator[Entry]) -> list[tuple[int, Any]]:
    events = (entry.item for entry in entries)
    return [(event.at_ns, event.message) for event in events if isinstance(event, ev.Received)]


def _gaps(times: list[int], begin: int, end: int) -> list[float]:
    """Seconds between two of them, in order of length; the ends of the window count, too."""
    bounds = [begin, *times, end]
    return sorted((after - before) / 1e9 for before, after in pairwise(bounds))


def table_of(found: dict[str, Any]) -> str:
    """A report for people."""
    rate, delays = found["mbit_per_s"], found["beat_delay_s"]
    lines = [
        f"{found['seconds']:.0f} s on a link of {RATE} each way, queue {QUEUE}; "
        f"{found['bodies']} bodies and {found['publishes']} publishes got through",
        f"on the link: {rate['up']:.2f} Mbit/s up, {rate['down']:.2f} Mbit/s down",
        f"{'':32s} {'median':>8s} {'p99':>8s} {'longest':>8s}",
    ]
    rows = {f"between two {name} heard, s": gaps for name, gaps in found["between_s"].items()}
    for name, values in {**rows, "a beat on its way, s": delays}.items():
        aim = "" if "way" in name else f"   aim {AIM_S:g}"
        lines.append(f"{name:32s} {_at(values, 0.5)} {_at(values, 0.99)} {_at(values, 1.0)}{aim}")
    return "\n".join(lines)


def _at(ordered: list[float], share: float) -> str:
    return f"{ordered[min(len(ordered) - 1, int(share * len(ordered)))]:8.3f}"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    parser.add_argument("--record", action="store_true", help="keep the table in benchmarks/records/")
    parser.add_argument("--quick", action="store_true", help="20 s: does it run, not how well")
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="of training; the first 10 are not counted"
    )
    for hidden in ("--role", "--folder", "--url", "--token"):
        parser.add_argument(hidden, default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.role == "syncer":
        serve(Path(options.folder))
        return
    if options.role == "learner":
        learn(Path(options.folder), options.url, options.token, options.seconds)
        return
    if reason := why_not():
        sys.exit(reason)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit("terminated"))  # so that all is removed
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        samples = run(Path(folder), 20.0 if options.quick else options.seconds)
        found = judge(Path(folder), samples)
    table = table_of(found)
    print(f"measured, load {load:.2f};", ", ".join(f"{k} {v}" for k, v in found["hardware"].items()))
    print(table)
    if options.record:
        print(f"kept in {write_record('Heartbeats on a full link', table, load)}")
    if options.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
