"""One of the many disks that a power cut may leave, chosen by a seed.

Choosing each sector by a coin would make almost every image a heap of rubble, and rubble is easily found. So
an image first gets a temper: how names fare, and how contents fare; each file then its own. The tempers
include the plain ones (all is lost, all is kept, names without contents) that real disks like best.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.crash.disk import Change, Key, Moment, apply

__all__ = ["draw", "draw_without"]

SECTOR_BYTES = 512
MAX_VERSIONS = 4
"""So many states of one file are mixed, the oldest and the newest among them."""


def draw(moment: Moment, seed: int, target: Path) -> Path:
    """Write what the disk held into an empty folder; the same seed gives the same bytes."""
    dice = random.Random(seed)
    names = _names(moment, dice)
    temper = dice.choice(TEMPERS)
    contents = {
        node: _content(moment.contents[node], temper or dice.choice(TEMPERS[:-1]), dice)
        for node in sorted(names.values())
        if node not in moment.folders
    }
    _write(target, 0, names, contents)
    return target


def draw_without(moment: Moment, folder: str, target: Path) -> Path:
    """Everything reached the disk but what lies in a folder of this name and was never forced."""
    names = dict(moment.names)
    for change in moment.changes:
        apply(names, change)
    unlucky = {node for key, node in names.items() if key.name == folder}
    contents = {
        node: moment.contents[node][0 if key.folder in unlucky else -1]
        for key, node in names.items()
        if node not in moment.folders
    }
    _write(target, 0, names, contents)
    return target


def _write(folder: Path, number: int, names: dict[Key, int], contents: dict[int, bytes]) -> None:
    folder.mkdir()
    for key, node in names.items():
        if key.folder == number:
            if node in contents:
                (folder / key.name).write_bytes(contents[node])
            else:
                _write(folder / key.name, node, names, contents)


def _names(moment: Moment, dice: random.Random) -> dict[Key, int]:
    names, changes = dict(moment.names), moment.changes
    happened: Sequence[Change] = changes
    match dice.choice(("none", "all", "first", "each")):
        case "none":
            happened = ()
        case "first":
            happened = changes[: dice.randint(0, len(changes))]
        case "each":
            own = {node: dice.random() for node in sorted({change.node for change in changes})}
            happened = [c for c in changes if dice.random() < own[c.node] or _closes(own, c)]
    for change in happened:
        apply(names, change)
    return names


def _closes(own: dict[int, float], change: Change) -> bool:
    """Once a change of a file did not happen, its later ones did not either."""
    own[change.node] = -1.0
    return False


def _content(versions: tuple[bytes, ...], temper: str, dice: random.Random) -> bytes:
    if len(versions) == 1:
        return versions[0]
    if len(versions) > MAX_VERSIONS:
        between = sorted(dice.sample(range(1, len(versions) - 1), MAX_VERSIONS - 2))
        versions = (versions[0], *(versions[i] for i in between), versions[-1])
    old, new = versions[0], versions[-1]
    if temper in ("old", "new"):
        return old if temper == "old" else new
    length = len(dice.choice(versions))
    stale = bytes(SECTOR_BYTES) if dice.random() < 0.5 else dice.randbytes(SECTOR_BYTES)
    choose = _chooser(temper, (max(map(len, versions)) - 1) // SECTOR_BYTES + 1, len(versions), dice)
    sectors = []
    for number in range((length - 1) // SECTOR_BYTES + 1 if length else 0):
        at = number * SECTOR_BYTES
        held = [v[at : at + SECTOR_BYTES] + stale[len(v[at : at + SECTOR_BYTES]) :] for v in versions]
        first, second = choose(number)
        half = SECTOR_BYTES // 2
        sectors.append(held[first][:half] + held[second][half:])
    return b"".join(sectors)[:length]


def _chooser(
    temper: str, num_sectors: int, num_versions: int, dice: random.Random
) -> Callable[[int], tuple[int, int]]:
    """Which version the two halves of a sector are of."""
    newest = num_versions - 1
    if temper == "front":
        end = dice.randrange(num_sectors + 1)
        return lambda number: (newest, newest) if number < end else (0, 0)
    if temper == "one torn":
        which = dice.randrange(num_sectors)
        torn = dice.choice(((0, newest), (newest, 0)))
        return lambda number: torn if number == which else (newest, newest)

    def scattered(number: int) -> tuple[int, int]:
        first = dice.randrange(num_versions)
        return (first, first) if dice.random() < 0.9 else (first, dice.randrange(num_versions))

    return scattered


TEMPERS = ("old", "new", "front", "one torn", "scattered", "")
"""The last one: each file has its own."""
