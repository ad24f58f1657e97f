"""What `import atoll` promises, pinned: a change here is a change of the public API."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys

import atoll
from atoll import errors

PUBLIC = [
    "AtollError",
    "CodecError",
    "ConfigError",
    "JoinError",
    "Learner",
    "ModelError",
    "ProtocolError",
    "RecipeError",
    "RunConfig",
    "StoreError",
    "Syncer",
    "TapeError",
    "WireError",
    "__version__",
    "join",
]


def test_the_public_names_are_exactly_these():
    assert sorted(atoll.__all__) == PUBLIC
    assert all(hasattr(atoll, name) for name in PUBLIC)


def test_every_error_is_public_and_an_atoll_error():
    assert set(errors.__all__) <= set(atoll.__all__)
    for name in errors.__all__:
        assert issubclass(getattr(errors, name), errors.AtollError)


def test_the_version_is_the_installed_one():
    assert importlib.metadata.version("atoll") == atoll.__version__


def test_importing_atoll_does_not_import_torch():
    code = "import atoll, sys; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr or "`import atoll` imports torch: make that import lazy"
