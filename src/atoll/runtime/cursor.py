"""The data cursor on disk: where a learner stands in its shard.

A cursor means nothing without the shard that it counts in, so the file names both. A learner that is given
another shard begins that shard's data anew.
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

from atoll.recipes import Shard
from atoll.runtime.failpoints import reach

__all__ = ["FILE", "load_cursor", "save_cursor"]

log = logging.getLogger("atoll")

FILE = "cursor.json"


def save_cursor(state_dir: Path, shard: Shard, cursor: str) -> None:
    """Put the cursor, a JSON text, in place whole, or raise `OSError` and leave the one before."""
    part = state_dir / f"{FILE}.part"
    place = json.dumps([shard.index, shard.count, shard.seed])
    part.write_text(f'{{"shard": {place}, "cursor": {cursor}}}\n', encoding="utf-8")
    reach("L12")
    os.replace(part, state_dir / FILE)


def load_cursor(state_dir: Path | None, shard: Shard) -> str:
    """The cursor of an earlier life in this shard, as JSON; `null` if there is none."""
    if state_dir is None:
        return "null"
    path = state_dir / FILE
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
        place, cursor = saved["shard"], json.dumps(saved["cursor"])
    except FileNotFoundError:
        return "null"
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("%s cannot be read, so the data begins anew: %s", path, error)
        return "null"
    if place != [shard.index, shard.count, shard.seed]:
        log.info("%s is of another shard, %s: the data of shard %d begins anew", path, place, shard.index)
        return "null"
    return cursor
