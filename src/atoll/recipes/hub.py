"""Users' own models and datasets: from a folder, from a config file, or from the Hugging Face hub.

    hf:google/gemma-4-e2b   a model of the hub, with its weights and its tokenizer
    hf:path/to/folder       the same from disk; without weights, its config with random ones
    hf:path/to/config.json  a config with random weights

Whether a name is on disk is looked at first; what looks like a path is never asked for at the hub. The
libraries are imported here and only here. Unless the hub is wanted they are told to stay offline,
so that a recipe of ours never waits for a network.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from atoll.errors import RecipeError

__all__ = [
    "NO_CODE",
    "NUM_BYTES",
    "NUM_DIGITS",
    "config",
    "first_line",
    "has_weights",
    "is_hub",
    "library",
    "location",
    "rows",
    "source",
    "tokenizer",
]

PREFIX = "hf:"
MAX_ROWS = 1_000_000
NUM_BYTES = 256
NUM_DIGITS = 10
NO_CODE = {"trust_remote_code": False}  # a model is data; whoever wrote it runs nothing here
EXTRAS = {"transformers": "'atoll[recipes]'", "sklearn.datasets": "'atoll[recipes]'", "datasets": "datasets"}


def is_hub(name: str) -> bool:
    """Whether a name carries the prefix of this module."""
    return name.startswith(PREFIX)


def library(name: str, *, online: bool = False) -> Any:
    """Import a library of the `recipes` extra, offline unless asked otherwise."""
    if not online:
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise RecipeError(
            f"The library {name.split('.')[0]} cannot be imported: {error}.",
            "The recipe takes its model or its data from there.",
            f"Install it: pip install {EXTRAS[name]}",
        ) from error


def location(model: str) -> Path | None:
    """The folder or config file that `hf:...` names on this machine; None if it names a model of the hub."""
    if not is_hub(model):
        raise RecipeError(
            f"The model {model!r} has no source.",
            "Atoll cannot tell a model of a hub from a path.",
            f"Write {PREFIX}{model}, for a name on the Hugging Face hub, a local folder or a config file.",
        )
    name = model.removeprefix(PREFIX)
    path = Path(name).expanduser()
    if path.exists():
        return path
    if name.count("/") > 1 or name.endswith(".json") or name.startswith((".", "/", "~")):
        raise RecipeError(
            f"The model {model} is neither a file nor a folder on this machine.",
            "It is no name of the hub either, so there is no model to train.",
            "Give a folder, a config .json, or a name as the hub spells it (OWNER/NAME).",
        )
    return None


def config(model: str, unit: Literal["tokens", "images"]) -> Any:
    """The transformers config that `hf:...` names, fitted to the recipe's kind of data."""
    found = _config(model)
    if unit == "images":
        found.num_labels = NUM_DIGITS
        return found
    vocabulary = getattr(found.get_text_config(), "vocab_size", 0)
    if vocabulary < NUM_BYTES:
        raise RecipeError(
            f"The model {model} has a vocabulary of {vocabulary}.",
            f"Text is read byte by byte, or with the model's tokenizer: that takes {NUM_BYTES} words.",
            f"Give a language model whose config has a vocab_size of {NUM_BYTES} or more.",
        )
    return found


def source(model: str) -> str:
    """What to ask transformers for: the whole path, or the name at the hub."""
    path = location(model)
    return model.removeprefix(PREFIX) if path is None else str(path.resolve())


def has_weights(path: Path | None) -> bool:
    """Whether a place holds weights: the hub does, a config file does not, a folder may."""
    if path is None:
        return True
    return path.is_dir() and any(path.glob("*.safetensors"))


def tokenizer(model: str) -> Any | None:
    """The tokenizer that comes with a model, or None: then the text is read byte by byte."""
    path = location(model)
    if path is not None and not (path / "tokenizer_config.json").is_file():
        return None
    transformers = library("transformers", online=path is None)
    try:
        return transformers.AutoTokenizer.from_pretrained(source(model), **NO_CODE)
    except Exception as error:  # as above
        raise _unavailable("tokenizer of", model, path is None, error) from error


def rows(data: str, most_bytes: int) -> list[bytes]:
    """The first texts of a dataset of the hub, up to a size in bytes."""
    datasets = library("datasets", online=True)
    name = data.removeprefix(PREFIX)
    try:
        stream = datasets.load_dataset(name, split="train", streaming=True)
        texts = list(_until(most_bytes, islice(stream, MAX_ROWS)))
    except Exception as error:  # as above
        raise _unavailable("dataset", data, True, error) from error
    if not texts:
        raise RecipeError(
            f"The dataset {data} has no text in its split `train`.",
            "There is nothing to train on.",
            "Give a dataset whose rows have a column of text.",
        )
    return texts


def _config(model: str) -> Any:
    path = location(model)
    transformers = library("transformers", online=path is None)
    try:
        if path is None or path.is_dir():
            return transformers.AutoConfig.from_pretrained(source(model), **NO_CODE)
        values = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(values, dict) or "model_type" not in values:
            raise ValueError("it names no model_type")
        return transformers.AutoConfig.for_model(**values)
    except Exception as error:  # a hub fails in whatever way its HTTP client does, a config in many
        raise _unavailable("model", model, path is None, error) from error


def _until(most_bytes: int, stream: Iterator[dict[str, Any]]) -> Iterator[bytes]:
    size = 0
    for row in stream:
        text = _text_of(row)
        if not text:
            continue
        size += len(text)
        yield text
        if size >= most_bytes:
            return


def _text_of(row: dict[str, Any]) -> bytes:
    """The column `text`, else the first one that holds a string."""
    values = [row.get("text"), *row.values()]
    return next((value for value in values if isinstance(value, str)), "").encode()


def _unavailable(kind: str, name: str, remote: bool, error: Exception) -> RecipeError:
    reason = first_line(error)
    if not remote:
        return RecipeError(
            f"The {kind} {name} cannot be read: {reason}.",
            "It is not what transformers saves, so the model cannot be built.",
            "Give a folder written by save_pretrained, or a config .json that names its model_type.",
        )
    return RecipeError(
        f"The {kind} {name} cannot be had from the Hugging Face hub: {reason}.",
        "Nothing was started, because every learner would fail the same way.",
        "Check the name, the network and HF_HUB_OFFLINE; or name a local folder instead.",
    )


def first_line(error: Exception) -> str:
    """What an error of another library says, short enough to stand in a sentence of ours."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].rstrip(".:")
