"""Run merge, outer step and every codec, and print one digest per result. Started by test_vector_levels."""

from __future__ import annotations

import json

import torch

from atoll.numerics.codec import CODECS
from atoll.numerics.feedback import Encoder
from atoll.numerics.manifest import Fragment, Rule, Unit
from atoll.numerics.merge import inspect, merge
from atoll.numerics.outer import OuterState, digest, outer_step
from atoll.numerics.reduce import sum_of_squares

UNITS = (70_001, 64 * 64, 131_072, 777, 1)
NUMEL = sum(UNITS)


def values(seed: int) -> torch.Tensor:
    """Values made of integer arithmetic only, so that the input has the same bits everywhere."""
    state = torch.arange(NUMEL, dtype=torch.int64) * 6364136223846793005 + 1442695040888963407 * (seed + 1)
    state = (state ^ (state >> 29)) * 7046029254386353131
    small = ((state >> 33) % 65536 - 32768).to(torch.float32)
    return small * (1.0 + (torch.arange(NUMEL) // 100 % 7).to(torch.float32)) * 2.0**-20


def main() -> None:
    """Print the vector level in use and the digests."""
    torch.set_num_threads(1)
    rules: tuple[Rule, ...] = ("rda", "mean", "rda", "rda", "mean")
    fragment = Fragment(
        0, tuple(Unit(f"t{k}", 0, n, r) for k, (n, r) in enumerate(zip(UNITS, rules, strict=True)))
    )
    found = {"square sum": sum_of_squares(values(0)).hex()}
    for name, codec in CODECS.items():
        encoder = Encoder(codec, NUMEL)
        bodies = []
        for seed in range(3):
            bodies.append(encoder.encode(values(seed)))
            encoder.settle(True)
        norms = [inspect(body, codec, fragment) for body in bodies]
        merged = merge(bodies, [1.0, 1.7, 0.3], codec, fragment, norms)
        state = OuterState.start(values(9))
        published = [outer_step(state, merged, 0.4, 0.9, codec) for _ in range(2)]
        found[name + " bodies"] = digest(torch.cat(bodies))
        found[name + " norms"] = " ".join(norm.hex() for row in norms for norm in row)
        found[name + " merged"] = digest(merged)
        found[name + " published"] = digest(torch.cat(published))
        found[name + " state"] = digest(torch.cat([state.served, state.remainder, state.momentum]))
    print(json.dumps({"level": torch.backends.cpu.get_cpu_capability(), "found": found}))


if __name__ == "__main__":
    main()
