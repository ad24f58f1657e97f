"""One bit of a run directory is wrong: who notices, and what is read if nobody does.

Every flip is judged twice. A restart (`RunStore.open` and `load`) may refuse, or name what it lost, or bring
back exactly the run there was; never anything else. Then the whole directory is checked (`check_store`). What
neither reports must leave all that anybody reads as it was: every row of every table, every tensor of every
file, settings, manifest, tape and recovered state.
"""

from __future__ import annotations

import contextlib
import json
import random
import sqlite3
import traceback
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from atoll.config import RunConfig
from atoll.errors import AtollError, StoreError
from atoll.numerics.outer import OuterState
from atoll.runtime.fsck import check_store
from atoll.runtime.store import Found, RunStore, read_run
from atoll.runtime.store.files import Files
from atoll.runtime.store.tensors import read_tensors

__all__ = ["Original", "bits_of", "judge", "sample"]

DETECTED, HARMLESS, MISSED = "detected", "harmless", "missed"
PAGE_BYTES = 4096


@dataclass(frozen=True, slots=True, repr=False)
class Original:
    """A directory before anything happened to it."""

    config: RunConfig
    contents: dict[str, bytes]
    """By path below the run directory; without what SQLite makes anew."""
    everything: Any
    """All that can be read of it."""
    restart: Any
    """What a restart brings back."""

    @classmethod
    def of(cls, run_dir: Path, config: RunConfig) -> Original:
        """Remember a directory."""
        contents = {
            str(path.relative_to(run_dir)): path.read_bytes()
            for path in sorted(run_dir.rglob("*"))
            if path.is_file() and path.name not in ("run.db-shm", "lock")
        }
        self = cls(config, contents, None, None)
        self.put(run_dir)
        everything = read_everything(run_dir)
        self.put(run_dir)
        restart, problems = restarted(run_dir, config)
        self.put(run_dir)
        report = check_store(run_dir)
        assert problems == ()
        assert report.problems == ()
        return replace(self, everything=everything, restart=restart)

    def put(self, run_dir: Path) -> None:
        """Make a directory as it was."""
        for path in run_dir.rglob("*"):
            if path.is_file() and str(path.relative_to(run_dir)) not in self.contents:
                path.unlink()
        for name, content in self.contents.items():
            path = run_dir / name
            if not path.exists() or path.read_bytes() != content:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)


def judge(
    original: Original, run_dir: Path, name: str, bits: Iterable[int]
) -> tuple[Counter[str], list[str]]:
    """Flip each of these bits of a file for itself; what became of them, and a sentence for each missed."""
    verdicts: Counter[str] = Counter()
    missed = []
    for bit in bits:
        try:
            verdict, why = _judge(original, run_dir, name, bit)
        except Exception as error:  # damage must be a sentence, and no traceback
            verdict, why = MISSED, f"{error!r} in {traceback.extract_tb(error.__traceback__)[-1]}"
        verdicts[verdict] += 1
        if verdict == MISSED:
            missed.append(f"{name}, bit {bit % 8} of byte {bit // 8}: {why}")
    original.put(run_dir)
    return verdicts, missed


def _judge(original: Original, run_dir: Path, name: str, bit: int) -> tuple[str, str]:
    content = bytearray(original.contents[name])
    content[bit // 8] ^= 1 << bit % 8
    flipped = replace(original, contents={**original.contents, name: bytes(content)})
    flipped.put(run_dir)
    try:
        found, problems = restarted(run_dir, original.config)
        if not problems and found != original.restart:
            return MISSED, "a restart brings back something else and says nothing"
    except StoreError:
        problems = ("refused",)
    flipped.put(run_dir)
    if problems or not check_store(run_dir).ok:
        return DETECTED, ""
    flipped.put(run_dir)
    try:
        is_same = read_everything(run_dir) == original.everything
    except (AtollError, sqlite3.Error) as error:
        return MISSED, f"the check finds nothing, and reading fails: {error}"
    return (HARMLESS, "") if is_same else (MISSED, "the check finds nothing, and something else is read")


def restarted(run_dir: Path, config: RunConfig) -> tuple[Any, tuple[str, ...]]:
    """What the next syncer would go on from, and what it would say is wrong."""
    store = RunStore.open(run_dir, config)
    try:
        found = store.load()
    finally:
        store.close()
    return plain(found), found.state.problems


def plain(found: Found) -> Any:
    """What was found, in a form that can be compared bit for bit."""
    return found.state, [_bits(fragment) for fragment in found.fragments or ()], found.manifest


def read_everything(run_dir: Path) -> Any:
    """All that anybody reads of a directory."""
    view = read_run(run_dir)
    tape = tuple(view.entries())
    files: dict[str, Any] = {}
    for path in sorted(run_dir.rglob("*.safetensors")):
        tensors = read_tensors(Files(), path)
        files[str(path.relative_to(run_dir))] = {
            name: tensor.numpy().tobytes() for name, tensor in tensors.items()
        }
    for path in sorted(run_dir.rglob("contents.json")):
        files[str(path.relative_to(run_dir))] = json.loads(path.read_text())
    return view.config, view.records, plain(view.found()), tape, files, _rows(run_dir / "run.db")


def _rows(path: Path) -> dict[str, list[Any]]:
    with contextlib.closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as db:
        tables = [
            name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY 1")
        ]
        rows = {name: db.execute(f"SELECT * FROM {name} ORDER BY rowid").fetchall() for name in tables}
        return {**rows, "schema": db.execute("SELECT * FROM sqlite_master ORDER BY name").fetchall()}


def _bits(state: OuterState) -> tuple[bytes, ...]:
    return tuple(t.numpy().tobytes() for t in (state.served, state.remainder, state.momentum))


def bits_of(content: bytes, dice: random.Random, step: int = 1) -> list[int]:
    """One bit of every byte, or of every `step`-th one."""
    return [8 * at + dice.randrange(8) for at in range(dice.randrange(step), len(content), step)]


def sample(content: bytes, dice: random.Random, num_flips: int) -> list[int]:
    """Bits spread over all pages of a database or its log, and one in each of the first hundred bytes.

    In each page some at its front, where its order is kept, some anywhere, and most where something stands.
    """
    num_pages = -(-len(content) // PAGE_BYTES)
    bits = bits_of(content[:100], dice)
    for page in range(num_pages):
        first = page * PAGE_BYTES
        places = range(first, min(first + PAGE_BYTES, len(content)))
        written = [at for at in places if content[at]] or places
        for number in range(max(1, (num_flips - 100) // num_pages)):
            at = dice.choice((places[:64], places, written, written)[number % 4])
            bits.append(8 * at + dice.randrange(8))
    return bits
