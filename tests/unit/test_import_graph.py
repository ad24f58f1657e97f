"""Imports point one way; this test walks them.

    errors <- core <- numerics, wire, tape, config, invariants, recipes <- runtime, sim
           <- chaos, observe, integrations <- cli

A part of the package may import itself and the layers below, never its neighbours, but for the few
pairs of `NEIGHBOURS`. Imports inside functions and under TYPE_CHECKING count: a cycle of types is a
missing type. The root package is the user's door: only `cli` goes through it, for the version.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).resolve().parents[2] / "src"
MAX_LINES = 500

LAYERS = (
    ("errors",),
    ("core",),
    ("numerics", "wire", "tape", "config", "invariants", "recipes"),
    ("runtime", "sim"),
    ("chaos", "observe", "integrations"),
    ("cli",),
    ("", "__main__"),  # `import atoll` and `python -m atoll` may reach everything
)
LAYER = {part: number for number, parts in enumerate(LAYERS) for part in parts}
NEIGHBOURS = {("invariants", "tape"), ("recipes", "numerics")}

# The protocol meets no clock, socket, thread or random number, so core may not even name them.
NOT_IN_CORE = {
    "asyncio", "concurrent", "datetime", "io", "multiprocessing", "os", "pathlib", "random", "secrets",
    "select", "selectors", "signal", "socket", "ssl", "subprocess", "tempfile", "threading", "time", "uuid",
}  # fmt: skip

# Carry real tensors through simulated runs, and are imported only when such a run is asked for.
MAY_IMPORT_TORCH = {
    "atoll.sim.tensors", "atoll.sim.lab.crew", "atoll.sim.lab.data", "atoll.sim.lab.models",
    "atoll.sim.lab.train", "atoll.sim.lab.world",
}  # fmt: skip


def files() -> list[Path]:
    return sorted((SRC / "atoll").rglob("*.py"))


def module_name(file: Path) -> str:
    parts = file.relative_to(SRC).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(tree: ast.AST, package: str, modules: frozenset[str]) -> Iterator[tuple[int, str]]:
    """Line and absolute name of every module that a source imports, wherever it does so."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                kept = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*kept, *([base] if base else [])])
            for alias in node.names:
                full = f"{base}.{alias.name}"
                yield node.lineno, full if full in modules else base


def part_of(module: str) -> str:
    """The part of the package that a module belongs to; the root package is ''."""
    return module.split(".")[1] if "." in module else ""


def objection(importer: str, target: str) -> str | None:
    """Why a module may not import another one, or None if it may."""
    here, there = part_of(importer), part_of(target)
    is_ours = target == "atoll" or target.startswith("atoll.")
    if here == "core" and not is_ours:
        top = target.split(".")[0]
        if top not in sys.stdlib_module_names and top != "__future__":
            return f"core needs nothing but the standard library, not {top}"
        if top in NOT_IN_CORE:
            return f"core is events in, commands out: {top} belongs in a shell"
    if not is_ours or here == there:
        return None
    if there == "":
        return None if here in ("cli", "__main__") else "import the module itself, not the root package"
    if unknown := [part for part in (here, there) if part not in LAYER]:
        return f"{unknown[0]} has no layer yet: name it in LAYERS"
    if LAYER[there] < LAYER[here] or (here, there) in NEIGHBOURS:
        return None
    return f"{here} may not import {there}: move the shared type down, into a lower layer"


def objections(source: str, importer: str, *, is_package: bool, modules: frozenset[str]) -> list[str]:
    package = importer if is_package else importer.rpartition(".")[0]
    found = []
    for line, target in imported(ast.parse(source), package, modules):
        if reason := objection(importer, target):
            found.append(f"{importer}, line {line}, imports {target}: {reason}")
    return found


def test_imports_point_one_way():
    modules = frozenset(module_name(file) for file in files())
    found = []
    for file in files():
        source = file.read_text(encoding="utf-8")
        is_package = file.name == "__init__.py"
        found += objections(source, module_name(file), is_package=is_package, modules=modules)
    assert not found, "\n" + "\n".join(found)


KNOWN = frozenset({"atoll", "atoll.errors", "atoll.core", "atoll.core.quorum", "atoll.sim", "atoll.tape"})


@pytest.mark.parametrize(
    ("importer", "source", "reason"),
    [
        ("atoll.core.quorum", "import torch", "nothing but the standard library"),
        ("atoll.core.quorum", "def f():\n    import numpy.linalg", "nothing but the standard library"),
        ("atoll.core.quorum", "from time import monotonic_ns", "belongs in a shell"),
        ("atoll.core.quorum", "from atoll.config import RunConfig", "core may not import config"),
        ("atoll.core.quorum", "from ..sim import engine", "core may not import sim"),
        ("atoll.core.quorum", "from atoll import errors, tape", "core may not import tape"),
        ("atoll.core.quorum", "from atoll import RunConfig", "not the root package"),
        ("atoll.errors", "from .core import params", "errors may not import core"),
        ("atoll.sim.engine", "import atoll.runtime.clock", "sim may not import runtime"),
        ("atoll.runtime.clock", "from atoll.sim import engine", "runtime may not import sim"),
        ("atoll.tape.write", "from atoll.invariants import check", "tape may not import invariants"),
        ("atoll.numerics.merge", "from atoll.config import CODECS", "numerics may not import config"),
        ("atoll.observe.page", "from atoll.chaos import plan", "observe may not import chaos"),
        ("atoll.utils", "from atoll.core import quorum", "utils has no layer yet"),
    ],
)
def test_a_wrong_import_is_found(importer: str, source: str, reason: str):
    found = objections(source, importer, is_package=False, modules=KNOWN)
    assert len(found) == 1
    assert reason in found[0]


@pytest.mark.parametrize(
    ("importer", "source"),
    [
        ("atoll.core.quorum", "from __future__ import annotations\nimport heapq\nfrom . import quorum"),
        ("atoll.core.quorum", "from atoll.errors import ProtocolError\nfrom .params import RunParams"),
        ("atoll.invariants", "from atoll.tape import read"),
        ("atoll.recipes.text", "from atoll.numerics import partition\nimport torch"),
        ("atoll.sim.engine", "from atoll import errors, tape\nfrom atoll.core import quorum\nimport random"),
        ("atoll.cli.main", "from atoll import __version__\nfrom atoll.sim import engine"),
        ("atoll", "from atoll.config import RunConfig"),
    ],
)
def test_a_right_import_is_left_alone(importer: str, source: str):
    assert objections(source, importer, is_package=importer == "atoll", modules=KNOWN) == []


@pytest.mark.parametrize("part", ["core", "sim"])
def test_the_simulator_needs_no_torch(part: str):
    names = [module_name(file) for file in files() if part_of(module_name(file)) == part]
    names = [name for name in names if name not in MAY_IMPORT_TORCH]
    code = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]:\n"
        "    importlib.import_module(name)\n"
        "    if 'torch' in sys.modules:\n"
        "        sys.exit(f'importing {name} imports torch: do it inside a function, or on demand')\n"
    )
    done = subprocess.run([sys.executable, "-c", code, *names], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_no_file_is_so_long_that_it_holds_two_ideas():
    lengths = {module_name(file): len(file.read_text(encoding="utf-8").splitlines()) for file in files()}
    assert {name: lines for name, lines in lengths.items() if lines > MAX_LINES} == {}
