"""Speed and error of every codec: GB/s of f32, encoded and decoded on one core.

    python benchmarks/codec.py [--quick] [--json]

Two sizes are measured: `cache`, one block that stays in the second-level cache, which is how the merge and
the outer step use a codec and what the aims are about; and `memory`, a whole fragment streamed from and to
main memory, where the machine's bandwidth (see `copy`) is the limit. Values are Gaussian with a size that
varies from row to row, as outer gradients' does; the error is relative in the 2-norm.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable

import torch
from hardware import hardware, interleaved, median_and_spread
from torch import Tensor

from atoll.numerics.codec import CODECS, Codec
from atoll.numerics.scratch import BLOCK

AIMS = {"bf16": (17.0, 17.0), "int4": (2.5, 5.0)}
"""GB/s of f32 to encode and to decode."""


def gradient(numel: int) -> Tensor:
    """Rows of 1024 Gaussian values, each with a size of its own between 1 and 20."""
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(numel, generator=generator)
    sizes = torch.rand(-(-numel // 1024), generator=generator).mul_(3.0).exp_()
    return values.mul_(sizes.repeat_interleave(1024)[:numel]).mul_(1e-3)


def measure(numel: int, repeats: int) -> dict[str, tuple[float, float, float]]:
    """GB/s (median, slowest, fastest) of every codec and direction, and of a plain copy."""
    values, back = gradient(numel), torch.empty(numel)
    loops = max(1, (8 * BLOCK) // numel)  # a short run is repeated inside the timed region

    def repeated(act: Callable[..., object], *args: object) -> Callable[[], object]:
        return lambda: [act(*args) for _ in range(loops)]

    runs = {"copy": repeated(back.copy_, values)}
    for name, codec in CODECS.items():
        body = codec.encode(values)
        runs[f"{name} encode"] = repeated(codec.encode, values, body)
        runs[f"{name} decode"] = repeated(codec.decode, body, 0, numel, back)
    speeds = {}
    for name, seconds in interleaved(runs, repeats).items():
        median, low, high = median_and_spread([4e-9 * numel * loops / s for s in seconds])
        speeds[name] = (median, low, high)
    return speeds


def error_of(codec: Codec, numel: int) -> float:
    """Relative error of one encoding."""
    values = gradient(numel)
    back = codec.decode(codec.encode(values), 0, numel, torch.empty(numel))
    return float((back - values).double().norm() / values.double().norm())


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    parser.add_argument(
        "--quick", action="store_true", help="1M values, 3 repeats: does it run, not how fast"
    )
    parser.add_argument("--repeats", type=int, default=25)
    options = parser.parse_args()
    torch.set_num_threads(1)
    numel, repeats = (1 << 20, 3) if options.quick else (16 << 20, options.repeats)
    sizes = {"cache": BLOCK, "memory": numel}
    speeds = {size: measure(values, repeats) for size, values in sizes.items()}
    print("measured;", ", ".join(f"{k} {v}" for k, v in hardware().items()))
    for size, found in speeds.items():
        median, low, high = found["copy"]
        print(f"\n{size}: {sizes[size]:,} values; plain copy {median:.1f} GB/s ({low:.1f} .. {high:.1f})")
        print(f"{'codec':6s} {'bits':>7s} {'error':>8s}   {'encode GB/s':24s} {'decode GB/s':24s}")
        for name, codec in CODECS.items():
            cells = []
            for k, way in enumerate(("encode", "decode")):
                median, low, high = found[f"{name} {way}"]
                aim = f" aim {AIMS[name][k]:g}" if name in AIMS and size == "cache" else ""
                cells.append(f"{median:5.2f} ({low:.2f} .. {high:.2f}){aim}")
            bits, error = codec.bits_per_value(numel), error_of(codec, 1 << 20)
            print(f"{name:6s} {bits:7.3f} {error:8.4f}   {cells[0]:31s} {cells[1]:31s}")
    if options.json:
        errors = {name: error_of(codec, 1 << 20) for name, codec in CODECS.items()}
        print(json.dumps({"hardware": hardware(), "gb_per_s": speeds, "relative_error": errors}))


if __name__ == "__main__":
    main()
