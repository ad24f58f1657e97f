"""Data-Parallel against Decoupled on a small byte-level language model, on the numerics alone.

    python benchmarks/parity.py [--steps 4000] [--size 64] [--seeds 0] [--lr-dp 3e-3] [--lr-decoupled 3e-3]

The text is the source of Python's standard library, split by file. Every method sees the same global
batch and the same number of tokens. Decoupled: M learners, H = P = 24, one fragment due at each step; it is
snapshotted, encoded in bf16, merged by RDA, stepped (eta 0.4, mu 0.9), published in bf16 and adopted by
overwriting tau steps later. No protocol, no network, no failures: this asks only what the arithmetic costs.
"""

from __future__ import annotations

import argparse
import json
import math
import sysconfig
import time
import zlib
from pathlib import Path
from typing import Any

import torch
from hardware import hardware
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

from atoll.numerics.codec import codec_for
from atoll.numerics.merge import merge
from atoll.numerics.outer import OuterState, outer_step
from atoll.numerics.partition import partition
from atoll.numerics.replica import Replica

H = P = 24
CONTEXT = 64


class Block(nn.Module):
    """Pre-norm attention and feed-forward."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(1, width // 16)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.join = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, time, width) to the same."""
        batch, length, width = x.shape
        heads = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=True)
        x = x + self.join(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    """A byte-level GPT with tied embeddings."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(256, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256, bias=False)
        self.head.weight = self.embed.weight
        nn.init.normal_(self.embed.weight, std=0.02)
        nn.init.normal_(self.place.weight, std=0.02)

    def forward(self, text: Tensor) -> Tensor:
        """Mean loss in nats per byte of (batch, CONTEXT + 1) bytes."""
        x = self.embed(text[:, :-1]) + self.place.weight
        logits = self.head(self.norm(self.blocks(x)))
        return cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())


def corpus() -> tuple[Tensor, Tensor]:
    """Training and held-out bytes: one file in 20 is held out, chosen by its name."""
    root = Path(sysconfig.get_paths()["stdlib"])
    parts: tuple[list[bytes], list[bytes]] = ([], [])
    for file in sorted(root.rglob("*.py")):
        name = file.relative_to(root).as_posix()
        if not {"site-packages", "test", "tests", "__pycache__"} & set(name.split("/")):
            parts[zlib.crc32(name.encode()) % 20 == 0].append(file.read_bytes())
    train, held = (torch.frombuffer(bytearray(b"".join(p)), dtype=torch.uint8).long() for p in parts)
    return train, held


def batch(text: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Random windows of CONTEXT + 1 bytes."""
    starts = torch.randint(0, text.numel() - CONTEXT - 1, (count,), generator=generator)
    return text[starts[:, None] + torch.arange(CONTEXT + 1)]


class Trainer:
    """One model, its AdamW and its data: a learner, or all of Data-Parallel."""

    def __init__(self, options: argparse.Namespace, seed: int, index: int, lr: float) -> None:
        torch.manual_seed(seed)
        self.model, self.lr, self.steps = Gpt(options.size, options.layers), lr, options.steps
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0.1
        )
        self.generator = torch.Generator().manual_seed(1000 * seed + index)

    def step(self, t: int, text: Tensor, count: int) -> None:
        """One optimizer step: warm-up over 4 %, then a cosine down to a tenth."""
        warm = min(1.0, (t + 1) / (0.04 * self.steps))
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr * warm * (0.55 + 0.45 * math.cos(math.pi * t / self.steps))
        self.optimizer.zero_grad()
        self.model(batch(text, count, self.generator)).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()


def data_parallel(options: argparse.Namespace, seed: int, text: Tensor) -> Gpt:
    """The lock-step baseline: one model, the whole global batch."""
    trainer = Trainer(options, seed, 0, options.lr_dp)
    for t in range(options.steps):
        trainer.step(t, text, options.batch)
    return trainer.model


def decoupled(options: argparse.Namespace, seed: int, text: Tensor, learners: int) -> Gpt:
    """M learners and a syncer; returns the global model as served."""
    codec = codec_for(options.codec)
    trainers = [Trainer(options, seed, m, options.lr_decoupled) for m in range(learners)]
    manifest = partition(trainers[0].model, P)
    replicas = [Replica(t.model, manifest, codec, codec, adopt=options.adopt) for t in trainers]
    states = [OuterState.start(replicas[0].gather(p)) for p in range(P)]
    for p, state in enumerate(states):
        for replica in replicas:
            replica.load(p, state.served)
    for t in range(options.steps):
        for trainer in trainers:
            trainer.step(t, text, options.batch // learners)
        if t >= options.tau:
            for replica in replicas:
                if replica.has_pending((t - options.tau) % P):
                    replica.adopt((t - options.tau) % P, merged=True)
        p = t % P
        offers = [replica.snapshot(p) for replica in replicas]
        bodies = [replica.encode(p, offer) for replica, offer in zip(replicas, offers, strict=True)]
        merged = merge(bodies, [1.0] * learners, codec, manifest.fragments[p])
        published = outer_step(states[p], merged, options.eta, options.mu, codec)
        for replica in replicas:
            replica.stage(p, published)
    for p, state in enumerate(states):
        replicas[0].load(p, state.served)
    return trainers[0].model


@torch.no_grad()
def heldout(model: Gpt, text: Tensor) -> float:
    """Loss in nats per byte over the same 2048 held-out windows for everyone."""
    windows = batch(text, 2048, torch.Generator().manual_seed(12345))
    return sum(float(model(part)) for part in windows.split(256)) / 8


def run(options: argparse.Namespace, seed: int, learners: int, text: Tensor, held: Tensor) -> dict[str, Any]:
    """Train one method and return its row; one learner means Data-Parallel."""
    begin = time.perf_counter()
    dp = learners == 1
    model = data_parallel(options, seed, text) if dp else decoupled(options, seed, text, learners)
    return {
        "method": "data-parallel" if dp else "decoupled",
        "learners": learners,
        "seed": seed,
        "parameters": sum(p.numel() for p in model.parameters()),
        "tokens": options.steps * options.batch * CONTEXT,
        "heldout_loss": heldout(model, held),
        "seconds": time.perf_counter() - begin,
    }


OPTIONS: dict[str, tuple[Any, str]] = {
    "steps": (4000, "optimizer steps of each learner"),
    "size": (64, "width; 64 is 0.17M parameters, 96 is 0.37M"),
    "layers": (3, "transformer blocks"),
    "batch": (24, "global batch in windows of 64 bytes"),
    "lr-dp": (3e-3, "peak rate of Data-Parallel"),
    "lr-decoupled": (3e-3, "peak rate of every learner"),
    "eta": (0.4, "outer rate"),
    "mu": (0.9, "outer momentum"),
    "tau": (2, "steps between snapshot and adoption"),
    "codec": ("bf16", "of offers and publishes"),
    "adopt": ("overwrite", "overwrite, blend or rebase"),
}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, (default, says) in OPTIONS.items():
        parser.add_argument(f"--{name}", type=type(default), default=default, help=f"{says} ({default})")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--learners", type=int, nargs="+", default=[2, 4], help="M")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    text, held = corpus()
    print("measured;", ", ".join(f"{k} {v}" for k, v in hardware().items()))
    rows: list[dict[str, Any]] = []
    for seed in options.seeds:
        for learners in [1, *options.learners]:
            row = run(options, seed, learners, text, held)
            rows.append(row)
            baseline = next(r for r in rows if r["seed"] == seed)  # Data-Parallel runs first
            row["gap_percent"] = 100 * (row["heldout_loss"] / baseline["heldout_loss"] - 1)
            print(
                "{method:14s} M={learners} seed {seed}  {parameters:,} parameters  {tokens:,} tokens  "
                "held-out {heldout_loss:.4f}  gap {gap_percent:+.2f} %  {seconds:.0f} s".format(**row),
                flush=True,
            )
    if options.json:
        print(json.dumps({"options": vars(options), "hardware": hardware(), "rows": rows}))


if __name__ == "__main__":
    main()
