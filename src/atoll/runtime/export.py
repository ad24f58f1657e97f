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

from atoll.errors import StoreError
from atoll.numerics.manifest import Manifest
from atoll.runtime.store import read_run

__all__ = ["export_run", "mean_buffers", "weights_of", "write_model"]


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


def export_run(run_dir: Path, out: Path, config: Mapping[str, object] | None = None) -> dict[str, object]:
    """Write the run's newest weights below `out`; `config` is a transformers config to put beside them.

    The answer counts a tied weight once.
    """
    view = read_run(run_dir)
    found = view.found()
    if found.fragments is None or view.manifest is None:
        raise StoreError(
            f"The run in {run_dir} has no weights yet.",
            "Nothing was ever merged or seeded.",
            "Train first, then export.",
        )
    served = [state.served for state in found.fragments]
    return write_model(run_dir, out, view.manifest, served, found.state.merges, config)


def write_model(
    run_dir: Path,
    out: Path,
    manifest: Manifest,
    fragments: Sequence[Tensor],
    merges: int,
    config: Mapping[str, object] | None = None,
) -> dict[str, object]:
    """Write these fragments of a run as a model, with its newest buffers; answers as `export_run`."""
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
