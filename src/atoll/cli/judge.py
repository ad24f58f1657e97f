"""What a run was worth: the held-out loss before and after, and the verdict on its tapes.

These functions run in a child of the fork server, which has torch at hand; the command line itself never
waits for it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoll.cli.settings import unusable
from atoll.recipes import recipe_from
from atoll.runtime.fleet_file import write_safely

if TYPE_CHECKING:
    from torch import nn

__all__ = ["export", "judge", "model_config", "read_recipe", "write_recipe"]

RECIPE = "recipe.json"
"""In a run directory: the settings that build its recipe again."""


def judge(settings: Mapping[str, Any], run_dir: str) -> dict[str, Any]:
    """Export the run's model, evaluate it and the initial one, check every tape."""
    from safetensors.torch import load_file

    from atoll.runtime.verdict import check_run

    recipe = recipe_from(settings)
    model = recipe.build_model()
    start = recipe.evaluate(model)
    out = Path(run_dir) / "model"
    export(settings, run_dir, str(out), model)
    # What is frozen stands not in the file, so some may be missing; but nothing may be strange.
    assert not model.load_state_dict(load_file(out / "model.safetensors"), strict=False).unexpected_keys
    verdict = check_run(Path(run_dir))
    return {
        "start": start,
        "end": recipe.evaluate(model),
        "violations": [*verdict.violations, *(f"replay: {problem}" for problem in verdict.replay)],
        "checks": verdict.num_checks,
        "entries": verdict.num_entries,
    }


def export(
    settings: Mapping[str, Any] | None,
    run_dir: str,
    out: str,
    model: nn.Module | None = None,
    *,
    accepts_loss: bool = False,
) -> dict[str, Any]:
    """Write the newest weights of a run; with a recipe's transformers model also its config.json."""
    from atoll.runtime.export import export_run

    config = model_config(settings, model)
    return export_run(Path(run_dir), Path(out), config, accepts_loss=accepts_loss)


def model_config(settings: Mapping[str, Any] | None, model: nn.Module | None = None) -> dict[str, Any] | None:
    """The config of a recipe's transformers model, for the files beside its weights; None if it has none."""
    if settings is not None and model is None:
        model = recipe_from(settings).build_model()
    described: Any = getattr(model, "config", None)  # of transformers
    if described is None:
        return None
    config: dict[str, Any] = json.loads(described.to_json_string(use_diff=False))
    return config | {"architectures": [type(model).__name__]}


def write_recipe(run_dir: Path, settings: Mapping[str, Any]) -> None:
    """Keep the settings of a recipe beside the run."""
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        write_safely(run_dir / RECIPE, json.dumps(settings, indent=2) + "\n")
    except OSError as error:
        raise unusable(run_dir, error) from error


def read_recipe(run_dir: Path) -> dict[str, Any] | None:
    """The settings of the run's recipe; None if it was trained by somebody's own loop."""
    try:
        settings = json.loads((run_dir / RECIPE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return settings if isinstance(settings, dict) else None
