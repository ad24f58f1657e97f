"""Single bit flips in all that a run directory holds: each is noticed, or changes nothing that is read."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.crash.flips import DETECTED, HARMLESS, MISSED, Original, bits_of, judge, sample
from tests.crash.syncer import Promise, Syncer
from tests.unit.runtime.store.driver import config, line

LOG = "run.db-wal"


def grow(run_dir: Path) -> Syncer:
    """Every kind of file and of row; the newest transaction is a round."""
    syncer = Syncer.boot(run_dir, config(), {}, Promise())
    syncer.seed()
    for number, p in enumerate((0, 1, 0, 1, 1, 0, 0, 1, 0, 1), 1):
        syncer.round(p)
        if number % 3 == 0:
            syncer.write(line(f"line {number}"))
            syncer.snapshot()
        if number == 5:
            syncer.admit("b")
    return syncer


@pytest.fixture(scope="module")
def with_log(shared_folder: Path) -> Original:
    """As a killed syncer leaves it: everything is still in the log."""
    syncer = grow(shared_folder / "killed")
    run_dir = shared_folder / "with log"
    for path in (shared_folder / "killed").rglob("*"):
        if path.is_file():
            target = run_dir / path.relative_to(shared_folder / "killed")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    syncer.close()
    original = Original.of(run_dir, config())
    assert len(original.contents[LOG]) > 100_000
    return original


@pytest.fixture(scope="module")
def closed(shared_folder: Path) -> Original:
    """As an orderly end leaves it: everything is in the database, and there is no log."""
    grow(shared_folder / "closed").close()
    original = Original.of(shared_folder / "closed", config())
    assert LOG not in original.contents
    return original


def show(title: str, verdicts) -> None:
    counts = " ".join(f"{name} {verdicts[name]:6}" for name in (DETECTED, HARMLESS, MISSED))
    print(f"\n{title:44} flips {sum(verdicts.values()):6} {counts}", end="")


def flip(original: Original, folder: Path, name: str, bits: list[int], note: str = "") -> None:
    verdicts, missed = judge(original, folder / "run", name, bits)
    show(f"{name}{note}", verdicts)
    assert not missed, "\n".join(missed)
    assert verdicts[DETECTED] > 0


def small_files(original: Original) -> list[str]:
    return [name for name in original.contents if not name.startswith("run.db")]


def test_a_flipped_bit_in_the_database_is_noticed_or_changes_nothing(closed, folder):
    bits = sample(closed.contents["run.db"], random.Random(1), 700)
    flip(closed, folder, "run.db", bits, " (closed)")


def test_a_flipped_bit_in_the_log_is_noticed_or_changes_nothing(with_log, folder):
    """SQLite drops the end of a damaged log and says nothing: the head beside the database notices."""
    flip(with_log, folder, LOG, sample(with_log.contents[LOG], random.Random(2), 400))


def test_a_flipped_bit_in_a_database_with_a_log_is_noticed_or_changes_nothing(with_log, folder):
    verdicts, missed = judge(
        with_log, folder / "run", "run.db", sample(with_log.contents["run.db"], random.Random(3), 120)
    )
    show("run.db (with its log)", verdicts)
    assert not missed, "\n".join(missed)


def test_a_flipped_bit_in_any_other_file_is_noticed_or_changes_nothing(closed, folder):
    dice = random.Random(4)
    for name in small_files(closed):
        flip(closed, folder, name, bits_of(closed.contents[name], dice, step=6))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_every_byte_of_every_file_is_flipped_somewhere(closed, with_log, folder, seed):
    """About an hour for all seeds. Each takes an eighth of the bytes."""
    for original in (closed, with_log):
        for name, content in original.contents.items():
            bits = bits_of(content, random.Random(seed))[seed::8]
            verdicts, missed = judge(original, folder / "run", name, bits)
            show(name, verdicts)
            assert not missed, "\n".join(missed)
