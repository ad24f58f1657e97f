"""The global model as files that others can load.

Parameters come from the served fragments; float buffers, which stay with the learners, as their
token-weighted mean. A tied weight stands there under each of its names. Frozen parameters never leave the
learners, so the files have none: they are named in the answer as `missing`. With a transformers model the
folder loads with `from_pretrained`; for any other model `model.safetensors` is its state dict.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from atoll.core.records import StoredState
from atoll.errors import StoreError
from atoll.numerics.manifest import Manifest
from atoll.runtime.store import read_run

__all__ = ["export_run", "mean_buffers", "weights_of", "write_model"]

MAX_NAMED = 3
"""Problems that a refusal names."""


def weights_of(manifest: Manifest, fragments: Sequence[Tensor]) -> dict[str, Tensor]:
    """Parameters by name, each in its own shape and type; tied ones once, under their first name."""
    flat = {storage.name: torch.empty(storage.numel, dtype=torch.float32) for storage in manifest.storages}
    for fragment, values in zip(manifest.fragments, fragments, strict=True):
        at = 0
        for unit in fragment.units:
            flat[unit.storage][unit.start : unit.stop] = values[at : at + unit.numel]
            at += unit.numel
    return {
        storage.name: flat[storage.name].reshape(storage.shape).to(getattr(torch, storage.dtype))
        for storage in manifest.storages
    }


def mean_buffers(run_dir: Path) -> dict[str, Tensor]:
    """Float buffers by name: the mean over learners, weighted by their tokens."""
    sums: dict[str, Tensor] = {}
    weights: dict[str, float] = {}
    for path in sorted((run_dir / "buffers").glob("*.safetensors")):
        with safetensors.safe_open(path, framework="pt") as file:
            tokens = float((file.metadata() or {}).get("tokens", "1")) or 1.0
            for name in file.keys():  # noqa: SIM118  (this object is no mapping)
                value = file.get_tensor(name) * tokens
                is_odd = name in sums and sums[name].shape != value.shape
                if is_odd or not bool(torch.isfinite(value).all()):
                    continue  # one learner that went astray spoils nobody's model
                sums[name] = sums[name] + value if name in sums else value
                weights[name] = weights.get(name, 0.0) + tokens
    return {name: total / weights[name] for name, total in sums.items()}


def export_run(
    run_dir: Path, out: Path, config: Mapping[str, object] | None = None, *, accepts_loss: bool = False
) -> dict[str, object]:
    """Write the run's newest weights below `out`; `config` is a transformers config to put beside them.

    The answer counts a tied weight once. If merges are lost the newest weights cannot be had: that is a
    `StoreError`, unless `accepts_loss`. Then the newest that can be had are written; the answer says in
    `lost` what is missing, and counts in `merges` and `versions` only what was written.
    """
    view = read_run(run_dir)
    lost = view.loss()
    found = view.found()
    problems = [f"run.db: {lost}"] if lost else []
    problems += found.state.problems if found.state.rollbacks else ()
    if problems and not accepts_loss:
        raise _not_whole(run_dir, problems)
    if found.fragments is None or view.manifest is None:
        raise StoreError(
            f"The run in {run_dir} has no weights yet.",
            "Nothing was ever merged or seeded.",
            "Train first, then export.",
        )
    merges = found.state.merges - sum(back.from_version - back.to_version for back in found.state.rollbacks)
    served = [state.served for state in found.fragments]
    written = write_model(run_dir, out, view.manifest, served, merges, config)
    return written | {"versions": _versions(found.state), "lost": problems}


def _versions(state: StoredState) -> list[int]:
    """What each fragment was rebuilt to."""
    reached = {back.fragment: back.to_version for back in state.rollbacks}
    return [reached.get(p, fragment.version) for p, fragment in enumerate(state.fragments)]


def _not_whole(run_dir: Path, problems: Sequence[str]) -> StoreError:
    more = len(problems) - MAX_NAMED
    named = "; ".join(problems[:MAX_NAMED]) + (f"; and {more} more" if more > 0 else "")
    return StoreError(
        f"The run in {run_dir} has lost merges: {named}.",
        "Its newest weights cannot be had, so nothing was written.",
        "Restore the run directory from a copy, or export what is left with --accept-loss; "
        "`atoll fsck` says what that is.",
    )


def write_model(
    run_dir: Path,
    out: Path,
    manifest: Manifest,
    fragments: Sequence[Tensor],
    merges: int,
    config: Mapping[str, object] | None = None,
) -> dict[str, object]:
    """Write these fragments of a run as a model, with its newest buffers; says where, and what is in it."""
    tensors = weights_of(manifest, fragments)
    tensors |= {name: value for name, value in mean_buffers(run_dir).items() if name not in tensors}
    try:
        out.mkdir(parents=True, exist_ok=True)
        metadata = {"format": "pt", "run": run_dir.name, "merges": str(merges)}
        named = tensors | _copies(manifest, tensors)
        safetensors.torch.save_file(named, out / "model.safetensors", metadata)
        if config is not None:
            (out / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise StoreError(
            f"The model could not be written to {out}: {error.strerror}.",
            "The run itself is untouched.",
            "Choose another folder with --out.",
        ) from error
    return {
        "path": str(out),
        "tensors": len(tensors),
        "values": sum(tensor.numel() for tensor in tensors.values()),
        "merges": merges,
        "missing": list(manifest.frozen),
    }


def _copies(manifest: Manifest, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tied weights by their other names; the format has no tensors that share memory."""
    return {
        alias: tensors[storage.name].clone() for storage in manifest.storages for alias in storage.aliases
    }
