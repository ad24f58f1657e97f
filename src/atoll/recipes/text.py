"""The text that is trained on: Python's own standard library, or a user's.

A text is a list of documents with names. The hash of a name decides for ever on which side a document
is (one in twenty is held out) and in which order documents are read, so that reading the first
few MB reads a fair sample of all. Of a held-out document only the beginning is used: no single file
decides the score.

The standard library is on every machine, needs no download and is the same for the same Python
version. Tests are left out, and so are generated tables (`encodings`, `pydoc_data`): they are near
copies of each other, and the held-out ones would be known by heart.
"""

from __future__ import annotations

import hashlib
import os
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from atoll.errors import RecipeError
from atoll.recipes import hub

__all__ = ["Document", "Texts", "describe", "folder", "read", "resolve", "split", "stdlib"]

HELDOUT_ONE_IN = 20
HELDOUT_FILE_BYTES = 16 * 1024
HUB_BYTES = 32 * 1024 * 1024  # a dataset of a hub may have no end

NOT_STDLIB_TEXT = frozenset({
    "test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__", "encodings", "pydoc_data",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Document:
    """One named piece of text; `read` fetches its bytes when they are needed."""

    name: str
    read: Callable[[], bytes]


@dataclass(frozen=True, slots=True)
class Texts:
    """What to train on, and what never to train on. Neither is empty."""

    train: list[bytes]
    heldout: list[bytes]
    names: list[str]
    """Of the documents in `train`; neighbours in the order of names have a topic in common."""

    def train_by_name(self) -> list[bytes]:
        """What to train on, in the order of the documents' names."""
        return [content for _, content in sorted(zip(self.names, self.train, strict=True))]


def read(data: str | None, train_bytes: int, heldout_bytes: int) -> Texts:
    """Read the text that `data` names: a folder whole, the standard library until it suffices."""
    if data is None:
        return split(stdlib(), train_bytes, heldout_bytes)
    if hub.is_hub(data):
        rows = [
            Document(str(number), partial(bytes, row)) for number, row in enumerate(hub.rows(data, HUB_BYTES))
        ]
        return split(rows, HUB_BYTES, heldout_bytes)
    return split(folder(data), sys.maxsize, heldout_bytes)


def resolve(data: str | None) -> str | None:
    """The name of a text as any process on this machine finds it; one that cannot be had is refused."""
    if data is None:
        return None
    if hub.is_hub(data):
        hub.rows(data, 1)
        return data
    folder(data)
    return str(Path(data).expanduser().resolve())


def describe(data: str | None, train_bytes: int) -> str:
    """The text in a few words."""
    if data is None:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        return f"up to {train_bytes / 1e6:.0f} MB of Python {version}'s standard library, byte by byte"
    if hub.is_hub(data):
        return f"the dataset {data} (its first {HUB_BYTES / 1e6:.0f} MB)"
    return f"the text in {data}"


def split(documents: Sequence[Document], train_bytes: int, heldout_bytes: int) -> Texts:
    """Sort documents into train and held-out by the hash of their names, up to a size for each.

    With so few documents that one side stays empty, the last twentieth of the text is held out.
    """
    ranked = sorted(documents, key=lambda document: (_rank(document.name), document.name))
    kept = [document for document in ranked if _rank(document.name) % HELDOUT_ONE_IN]
    held = [document for document in ranked if _rank(document.name) % HELDOUT_ONE_IN == 0]
    train = list(_take(kept, train_bytes))
    heldout = [content for _, content in _take(held, heldout_bytes, HELDOUT_FILE_BYTES)]
    if not train or not heldout:
        whole = b"\n".join([content for _, content in train] or [document.read() for document in held])
        cut = len(whole) - max(len(whole) // HELDOUT_ONE_IN, 1)
        return Texts([whole[:cut]], [whole[cut:][:heldout_bytes]], ["all"])
    return Texts([content for _, content in train], heldout, [name for name, _ in train])


def stdlib() -> list[Document]:
    """Python's standard library: every source file that people wrote and that is no test."""
    root = Path(sysconfig.get_path("stdlib"))
    found = _files(root, NOT_STDLIB_TEXT, ".py")
    if not found:
        raise RecipeError(
            f"The standard library in {root} has no source files.",
            "This recipe trains on their text, and there is none.",
            "Bring your own text: --data FOLDER.",
        )
    return found


def folder(path: str) -> list[Document]:
    """Every text file below a folder, but for hidden ones. A file with a zero byte is no text."""
    root = Path(path).expanduser()
    if not root.is_dir():
        raise RecipeError(
            f"The data folder {path} {'is not a folder' if root.exists() else 'does not exist'}.",
            "There is no text to train on.",
            "Give a folder with text files, or hf:NAME for a dataset of the hub.",
        )
    found = [document for document in _files(root) if _is_text(root / document.name)]
    if not found:
        raise RecipeError(
            f"The data folder {path} holds no text: no file in it has content without zero bytes.",
            "There is nothing to train on.",
            "Put text files into it, in any format, or give another folder.",
        )
    return found


def _files(root: Path, skipped: frozenset[str] = frozenset(), ending: str = "") -> list[Document]:
    found = []
    for parent, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in skipped and not name.startswith("."))
        for name in sorted(names):
            if name.endswith(ending) and not name.startswith("."):
                file = Path(parent, name)
                found.append(Document(file.relative_to(root).as_posix(), file.read_bytes))
    return found


def _is_text(file: Path) -> bool:
    try:
        with file.open("rb") as stream:
            start = stream.read(4096)
    except OSError as error:
        raise RecipeError(
            f"The data file {file} cannot be read: {error.strerror}.",
            "Leaving it out would make another data set than the one asked for.",
            "Make it readable, or take it out of the folder.",
        ) from error
    return bool(start) and b"\0" not in start


def _take(
    documents: Sequence[Document], most_bytes: int, most_each: int = sys.maxsize
) -> Iterator[tuple[str, bytes]]:
    """Names and contents one after the other until there is enough; the last one is cut."""
    left = most_bytes
    for document in documents:
        if left <= 0:
            return
        content = document.read()[: min(left, most_each)]
        if content:
            left -= len(content)
            yield document.name, content


def _rank(name: str) -> int:
    digest = hashlib.blake2b(os.fsencode(name), digest_size=8).digest()
    return int.from_bytes(digest, "big")
