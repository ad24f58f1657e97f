"""One round of M learners on one fragment: what it costs beside the floor, and beside naive code.

    python benchmarks/merge.py [--quick] [--json]

Offers are bf16, the rule is RDA, the outer step publishes bf16. Measured in the same run, interleaved:

    floor    read each offer, read and write an f32 accumulator once per offer (a bare sum)
    check    `inspect` of every offer: unit norms and finiteness, done while bodies arrive
    merge    from the last body to D, norms known
    outer    the outer step and the body to publish
    fused    check + merge with library dot products and fused multiply-add: quicker, but its bits depend
             on the processor, so it is only shown as the price of equal bits
    naive    all offers as f32 in one stack, norms, directions, means, then an eager outer step

The round is check + merge + outer. Peak memory is taken in fresh processes that hold one inbound body at
a time (`Merger.add`), beyond the state: served values, remainder and momentum.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from hardware import hardware, interleaved, median_and_spread
from torch import Tensor

from atoll.numerics.codec import codec_for
from atoll.numerics.manifest import Fragment, Unit
from atoll.numerics.merge import Merger, inspect, merge
from atoll.numerics.outer import OuterState, outer_step
from atoll.numerics.reduce import sum_of_squares
from atoll.numerics.scratch import BLOCK

ETA, MU = 0.4, 0.9
UNIT = 4 << 20
"""Values of one merge unit: a 2048 x 2048 matrix."""


def fragment_of(numel: int) -> Fragment:
    """A fragment of square matrices."""
    edges = range(0, numel, UNIT)
    return Fragment(0, tuple(Unit("weight", at, min(at + UNIT, numel), "rda") for at in edges))


def offer(numel: int, seed: int) -> Tensor:
    """A bf16 body of Gaussian values."""
    generator = torch.Generator().manual_seed(seed)
    body = torch.empty(2 * numel, dtype=torch.uint8)
    body.view(torch.bfloat16).copy_(torch.randn(numel, generator=generator))
    return body


def floor(bodies: list[Tensor], accumulator: Tensor, block: Tensor) -> None:
    """The least any streaming merge of these offers does: cast and add."""
    for body in bodies:
        values = body.view(torch.bfloat16)
        for start in range(0, accumulator.numel(), BLOCK):
            part = accumulator[start : start + BLOCK]
            part.add_(block[: part.numel()].copy_(values[start : start + BLOCK]))


def fused(bodies: list[Tensor], weights: list[float], accumulator: Tensor, block: Tensor) -> None:
    """RDA with `torch.dot` and `add_(alpha=)`, one unit for the whole fragment, unscaled."""
    accumulator.zero_()
    for body, weight in zip(bodies, weights, strict=True):
        values = body.view(torch.bfloat16)
        squares = 0.0
        for start in range(0, accumulator.numel(), BLOCK):
            part = block.copy_(values[start : start + BLOCK])
            squares += float(torch.dot(part, part))
        for start in range(0, accumulator.numel(), BLOCK):
            part = block.copy_(values[start : start + BLOCK])
            accumulator[start : start + BLOCK].add_(part, alpha=weight / math.sqrt(squares))
    accumulator.mul_(0.5)


def naive(bodies: list[Tensor], weights: list[float], numel: int, state: OuterState) -> Tensor:
    """RDA and outer step as one would first write them."""
    stacked = torch.stack([body.view(torch.bfloat16).float() for body in bodies]).view(len(bodies), -1, UNIT)
    share = torch.tensor(weights).view(-1, 1, 1) / sum(weights)
    norms = stacked.norm(dim=2, keepdim=True)
    direction = (share * stacked / norms).sum(0)
    merged = ((share * norms).sum(0) * direction / direction.norm(dim=1, keepdim=True)).view(numel)
    state.momentum = MU * state.momentum + merged
    state.served = state.served - ETA * (merged + MU * state.momentum)
    return merged


def measure(numel: int, learners: int, repeats: int) -> dict[str, list[float]]:
    """Seconds of every part, interleaved."""
    codec, fragment = codec_for("bf16"), fragment_of(numel)
    bodies = [offer(numel, seed) for seed in range(learners)]
    weights = [1.0 + m for m in range(learners)]
    norms = [inspect(body, codec, fragment) for body in bodies]
    accumulator, block = torch.zeros(numel), torch.empty(BLOCK)
    state, rough = OuterState.start(torch.zeros(numel)), OuterState.start(torch.zeros(numel))
    published = torch.empty(codec.encoded_bytes(numel), dtype=torch.uint8)

    def one_at_a_time() -> Tensor:
        merger = Merger(codec, fragment, accumulator)
        for body, weight, unit_norms in zip(bodies, weights, norms, strict=True):
            merger.add(body, weight, unit_norms)
        return merger.finish()

    return interleaved(
        {
            "floor": lambda: floor(bodies, accumulator, block),
            "check": lambda: [inspect(body, codec, fragment) for body in bodies],
            "merge one offer at a time": one_at_a_time,
            "merge": lambda: merge(bodies, weights, codec, fragment, norms, accumulator),
            "outer": lambda: outer_step(state, accumulator, ETA, MU, codec, published),
            "fused": lambda: fused(bodies, weights, accumulator, block),
            "naive": lambda: naive(bodies, weights, numel, rough),
        },
        repeats,
    )


def peak_of_round(numel: int, learners: int) -> dict[str, float]:
    """MiB beyond the state at the peak of a round that holds one inbound body at a time."""
    codec, fragment = codec_for("bf16"), fragment_of(numel)
    state = OuterState.start(torch.zeros(numel))
    state.remainder.fill_(0.0), state.momentum.fill_(0.0)
    before = _status_mib("VmRSS")
    inbound = torch.empty(codec.encoded_bytes(numel), dtype=torch.uint8)
    merger = Merger(codec, fragment)
    for seed in range(learners):
        generator = torch.Generator().manual_seed(seed)
        values = inbound.view(torch.bfloat16)
        for start in range(0, numel, BLOCK):
            values[start : start + BLOCK].copy_(torch.randn(min(BLOCK, numel - start), generator=generator))
        merger.add(inbound, 1.0, inspect(inbound, codec, fragment))
    outer_step(state, merger.finish(), ETA, MU, codec, inbound)
    peak = _status_mib("VmHWM")
    return {
        "learners": learners,
        "extra_mib": peak - before,
        "accumulator_mib": numel * 4 / 2**20,
        "inbound_mib": numel * 2 / 2**20,
    }


def norm_error(numel: int) -> float:
    """Relative error of a norm against f64."""
    values = torch.randn(numel, generator=torch.Generator().manual_seed(0)).mul_(1e-3)
    truth = math.fsum(float(part.double().square().sum()) for part in values.split(1 << 20))
    return abs(math.sqrt(sum_of_squares(values)) / math.sqrt(truth) - 1.0)


def _status_mib(field: str) -> float:
    status = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) / 1024 for line in status if line.startswith(field))


def _peaks(numel: int) -> list[dict[str, float]]:
    rows = []
    for learners in (2, 8, 16):
        command = [sys.executable, __file__, "--memory", str(learners), "--values", str(numel)]
        rows.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    return rows


def report(numel: int, learners: int, repeats: int, norm_values: int) -> dict[str, Any]:
    """Measure everything and return it as one object."""
    seconds = measure(numel, learners, repeats)
    parts = {name: median_and_spread(values) for name, values in seconds.items()}
    rounds = [sum(three) for three in zip(seconds["check"], seconds["merge"], seconds["outer"], strict=True)]
    closing = [sum(two) for two in zip(seconds["merge"], seconds["outer"], strict=True)]

    def ratio(above: list[float], below: str) -> float:
        return median_and_spread([a / b for a, b in zip(above, seconds[below], strict=True)])[0]

    return {
        "hardware": hardware(),
        "values": numel,
        "learners": learners,
        "repeats": repeats,
        "seconds": parts,
        "round_s": median_and_spread(rounds),
        "after_last_body_s": median_and_spread(closing),
        "round_over_floor": ratio(rounds, "floor"),
        "after_last_body_over_floor": ratio(closing, "floor"),
        "naive_over_round": 1.0 / ratio(rounds, "naive"),
        "norm_values": norm_values,
        "norm_error": norm_error(norm_values),
        "memory": _peaks(numel),
    }


def show(found: dict[str, Any]) -> None:
    """Print a report for people."""
    print("all numbers measured;", ", ".join(f"{k} {v}" for k, v in found["hardware"].items()))
    print(f"{found['learners']} learners, fragment of {found['values']:,} values, {found['repeats']} repeats")
    rows = dict(found["seconds"])
    rows["round = check + merge + outer"], rows["merge + outer"] = (
        found["round_s"],
        found["after_last_body_s"],
    )
    for name, (median, low, high) in rows.items():
        print(f"  {name:32s} {median * 1e3:8.1f} ms   ({low * 1e3:.1f} .. {high * 1e3:.1f})")
    print(f"round / floor               {found['round_over_floor']:.2f}   aim 1.3")
    print(f"after the last body / floor {found['after_last_body_over_floor']:.2f}")
    print(f"naive / round               {found['naive_over_round']:.1f}   aim 10")
    print(f"norm of {found['norm_values']:,} values: relative error {found['norm_error']:.1e}   aim 1e-6")
    for row in found["memory"]:
        print(
            f"M={row['learners']:2d}: {row['extra_mib']:6.1f} MiB beyond the state at the peak; "
            f"one accumulator and one inbound body are {row['accumulator_mib'] + row['inbound_mib']:.1f}"
        )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    parser.add_argument(
        "--quick", action="store_true", help="4M values, 3 repeats: does it run, not how fast"
    )
    parser.add_argument("--learners", type=int, default=8, help="M")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--values", type=int, default=32 << 20, help="size of the fragment")
    parser.add_argument("--memory", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.memory:
        print(json.dumps(peak_of_round(options.values, options.memory)))
        return
    values, repeats = (4 << 20, 3) if options.quick else (options.values, options.repeats)
    found = report(values, options.learners, repeats, (8 if options.quick else 64) << 20)
    show(found)
    if options.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
