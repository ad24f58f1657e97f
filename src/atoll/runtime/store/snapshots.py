"""Snapshots and deltas as files, and how they are checked.

    deltas/<digest>.safetensors                  one tensor, "delta"
    snapshots/seed.safetensors                   version 0: one tensor per fragment, by its number
    snapshots/<merges>/<fragment>.safetensors    served, remainder, momentum
    snapshots/<merges>/contents.json             version and digests of each fragment

A snapshot is written fragment by fragment into a folder with a temporary name, forced to disk, renamed,
and read back: only what could be read back is registered in run.db, under the digest of its
contents.json.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from torch import Tensor

from atoll.numerics.outer import OuterState, digest
from atoll.runtime.failpoints import reach
from atoll.runtime.store.files import Files, reason_of
from atoll.runtime.store.interface import PreparedSnapshot
from atoll.runtime.store.tensors import read_tensors, tensor_parts

__all__ = [
    "SEED",
    "delta_path",
    "read_delta",
    "read_fragment",
    "read_seed",
    "read_versions",
    "write_delta",
    "write_seed",
    "write_snapshot",
]

SEED = "seed.safetensors"
CONTENTS = "contents.json"
TENSORS = ("served", "remainder", "momentum")


def delta_path(folder: Path, name: str) -> Path:
    """The file of a delta, by its digest."""
    return folder / f"{name}.safetensors"


def write_delta(files: Files, path: Path, delta: Tensor, *, sync: bool) -> None:
    """Put the file of a delta in place."""
    files.write_durably(path, tensor_parts({"delta": delta}), sync=sync)


def read_delta(files: Files, folder: Path, name: str) -> Tensor:
    """Read a delta; raises `OSError`, or `ValueError` if it is not what its name says."""
    delta = read_tensors(files, delta_path(folder, name)).get("delta")
    if delta is None or digest(delta) != name:
        raise ValueError("its content does not have the digest in its name")
    return delta


def write_seed(files: Files, folder: Path, values: list[Tensor]) -> None:
    """Put the file of version 0 in place, durably."""
    parts = tensor_parts({str(p): tensor for p, tensor in enumerate(values)})
    files.write_durably(folder / SEED, parts, sync=True)


def read_seed(files: Files, folder: Path, fragment: int) -> OuterState:
    """Version 0 of a fragment, at rest; the caller checks its digest."""
    tensor = read_tensors(files, folder / SEED, only=str(fragment)).get(str(fragment))
    if tensor is None:
        raise ValueError("it does not hold this fragment")
    return OuterState.start(tensor)


def write_snapshot(
    files: Files, folder: Path, merges: int, versions: tuple[int, ...], states: list[OuterState]
) -> PreparedSnapshot:
    """Write the whole state below `folder` and read it back; a failure leaves nothing behind."""
    target = _free_name(folder, merges)
    unfinished = files.unfinished_name(target)
    try:
        text = _write_parts(files, unfinished, merges, versions, states)
        files.rename(unfinished, target)
        files.sync_folder(folder)
        contents = _contents_digest(text)
        for p in range(len(states)):
            files.forget(target / f"{p}.safetensors")
            read_fragment(files, target, p, contents)
    except (OSError, ValueError) as error:
        files.discard(unfinished)
        files.discard(target)
        what = "what was written does not read back: " if isinstance(error, ValueError) else ""
        return PreparedSnapshot(merges, versions, reason=f"{what}{reason_of(error)}")
    return PreparedSnapshot(merges, versions, target.name, contents)


def read_versions(files: Files, folder: Path, contents: str) -> tuple[int, ...]:
    """The version of every fragment in a snapshot, from its contents.json."""
    return tuple(listed["version"] for listed in _read_contents(files, folder, contents))


def read_fragment(files: Files, folder: Path, fragment: int, contents: str) -> OuterState:
    """One fragment of a snapshot, every bit held against its contents.json, and that against its digest."""
    wanted = _read_contents(files, folder, contents)[fragment]
    tensors = read_tensors(files, folder / f"{fragment}.safetensors")
    for name in TENSORS:
        if name not in tensors or digest(tensors[name]) != wanted[name]:
            raise ValueError(f"{name} does not have its digest")
    return OuterState(*(tensors[name] for name in TENSORS))


def _write_parts(
    files: Files, folder: Path, merges: int, versions: tuple[int, ...], states: list[OuterState]
) -> bytes:
    """Everything of a snapshot, on disk, in a folder that nobody looks at yet; returns its contents.json."""
    files.make_folder(folder)
    listed: list[dict[str, Any]] = []
    for p, (version, state) in enumerate(zip(versions, states, strict=True)):
        tensors = {name: getattr(state, name) for name in TENSORS}
        files.write(folder / f"{p}.safetensors", tensor_parts(tensors), sync=True)
        reach("S11")
        listed.append({"version": version} | {name: digest(tensor) for name, tensor in tensors.items()})
    text = json.dumps({"merges": merges, "fragments": listed}, indent=1).encode()
    files.write(folder / CONTENTS, [text], sync=True)
    files.sync_folder(folder)
    return text


def _read_contents(files: Files, folder: Path, contents: str) -> list[dict[str, Any]]:
    with files.open(folder / CONTENTS) as file:
        text = file.read()
    if _contents_digest(text) != contents:
        raise ValueError(f"{CONTENTS} does not have the digest it was registered with")
    listed: list[dict[str, Any]] = json.loads(text)["fragments"]
    return listed


def _free_name(folder: Path, merges: int) -> Path:
    """After a rollback the same number of merges may come again."""
    path, again = folder / str(merges), 1
    while path.exists():
        again += 1
        path = folder / f"{merges}-{again}"
    return path


def _contents_digest(text: bytes) -> str:
    return hashlib.blake2b(text, digest_size=16).hexdigest()
