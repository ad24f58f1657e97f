"""Offers that stay: with `tape.keep_offers`, the bodies of every merged round, to merge them again.

    offers/<delta digest>-<epoch>-<fragment>-<round>.safetensors    a uint8 tensor per contributor, by name

A round record leads to its file, and a file to the delta it was merged into: both are deleted together. The
header of the file holds the digest of each body, the one the body came with (XXH3-128), so that a spoiled
body is told apart from a wrong merge.

A file is written when its round is about to be committed, on the store's thread. It is forced to disk
whenever its round is: whoever keeps offers wants to prove merges, and the proof must not tear in a power cut
that the merge survives. But offers are evidence and not state. A disk that refuses one does not hold up the
round: it is committed without, and that is said.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors
import safetensors.torch
import xxhash
from torch import Tensor

from atoll.core.records import RoundRecord

if TYPE_CHECKING:  # the store imports this module
    from atoll.runtime.store.files import Files

__all__ = ["FOLDER", "KeptOffers", "body_digest", "offers_path", "prune", "read_offers"]

FOLDER = "offers"
"""Below the run directory."""
METADATA = "__metadata__"
ALIGNMENT = 8

log = logging.getLogger("atoll")


class KeptOffers:
    """Writes the offers of rounds. For one thread, the store's."""

    def __init__(self, folder: Path, files: Files) -> None:
        self._folder = folder
        self._files = files
        self._was_refused = False

    def keep(self, record: RoundRecord, bodies: Mapping[str, Tensor], sync: bool) -> bool:
        """Write the bodies that a round was merged from; False if the disk refused, which is logged once."""
        try:
            self._files.make_folder(self._folder)
            self._files.write_durably(offers_path(self._folder, record), _parts(bodies), sync=sync)
        except OSError as error:
            if not self._was_refused:
                log.warning(
                    "offers are not kept for now: %s; their rounds are committed, but cannot be merged again",
                    error.strerror or error,
                )
            self._was_refused = True
            return False
        if self._was_refused:
            log.warning("offers are kept again")
        self._was_refused = False
        return True


def offers_path(folder: Path, record: RoundRecord) -> Path:
    """Where the offers of a round lie."""
    which = f"{record.delta_digest}-{record.epoch}-{record.fragment}-{record.round}"
    return folder / f"{which}.safetensors"


def read_offers(files: Files, path: Path) -> dict[str, Tensor]:
    """The bodies of a round by learner; raises `OSError`, or `ValueError` naming the one that is spoiled."""
    with files.open(path) as file:
        content = file.read()
    try:
        bodies = safetensors.torch.load(content)
        size = int.from_bytes(content[:8], "little")
        digests = json.loads(content[8 : 8 + size])[METADATA]
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"it is torn or is no file of offers: {error}") from error
    for name, body in bodies.items():
        if body_digest(body) != digests.get(name):
            raise ValueError(f"the body of {name} does not have its digest")
    return bodies


def body_digest(body: Tensor) -> str:
    """XXH3-128 of a body, as it stands on the tape."""
    return xxhash.xxh3_128_hexdigest(body.numpy().data)


def prune(files: Files, folder: Path, needed: Collection[str]) -> None:
    """Delete the offers that were merged into none of these deltas."""
    for path in folder.glob("*.safetensors"):
        if path.name.split("-")[0] not in needed:
            files.discard(path)


def _parts(bodies: Mapping[str, Tensor]) -> list[bytes | memoryview]:
    """A safetensors file, from views of the bodies."""
    header: dict[str, Any] = {METADATA: {name: body_digest(body) for name, body in bodies.items()}}
    end = 0
    for name, body in bodies.items():
        start, end = end, end + body.numel()
        header[name] = {"dtype": "U8", "shape": [body.numel()], "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return [len(text).to_bytes(8, "little") + text, *(body.numpy().data for body in bodies.values())]
