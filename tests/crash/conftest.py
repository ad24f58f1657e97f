"""Folders for runs, in memory where the system has such a place: these tests force much to disk."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)

IN_MEMORY = Path("/dev/shm")


@pytest.fixture(scope="module")
def shared_folder() -> Iterator[Path]:
    place = IN_MEMORY if os.access(IN_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=place, prefix="atoll-store-") as folder:
        yield Path(folder)


@pytest.fixture
def folder(shared_folder: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=shared_folder) as folder:
        yield Path(folder)
