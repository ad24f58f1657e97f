"""What one learner of eight does to the model when it sends NaN, numbers times 1e6, flipped signs or zeros.

    python benchmarks/bad_numbers.py [--seeds 0 1] [--steps 240] [--since 0.25] [--only nan flip] [--record]

A real syncer and eight learners, all in this process and stepped in turn, on the small byte-level model and
the text of `parity.py`. From a quarter of the run on, what the last of them sends is spoiled: its own
training stays honest, the delta is changed just before it is encoded. Against the same run without it:
held-out loss at the end, offers rejected, quarantines, and how many spoiled offers were merged. That is
counted exactly: a spoiled body is known by its digest, the tape says in which round it came, the record of
the round who was merged.

The norm gate judges a fragment once eight offers on it were merged. With `--since 0`, or in runs so short
that a quarter of them is less than that, numbers times 1e6 get in, and the benchmark says so.

Three settings of the guards: their defaults; all off (`norm_gate` and `strikes` 0: only what is not finite
is still rejected); and `on_large = "clip"` with `max_share = 0.2`. The honest run is done twice per seed:
threads decide who makes which round, so no two runs are the same, and the difference of these two is what
another difference has to exceed to mean something.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import xxhash
from figures import markdown
from hardware import hardware, write_record
from parity import CONTEXT, Gpt, batch, corpus, heldout
from torch import Tensor

import atoll
from atoll.config import RunConfig
from atoll.core import events as ev
from atoll.core import messages as msg
from atoll.core.records import RoundRecord
from atoll.numerics.replica import Pending, Replica
from atoll.recipes.learning import schedule
from atoll.runtime.learner_shell import bytes_of
from atoll.runtime.store import read_run

NUM_LEARNERS = 8
NUM_FRAGMENTS, INTERVAL = 6, 12
QUORUM = 4
"""Rounds with fewer say little, and one that lacks the spoiled offer must still merge."""
WIDTH, LAYERS, WINDOWS, RATE = 32, 1, 8, 3e-3
"""Of the model, of a step, of AdamW."""
LONGEST_S = 900.0

Texts = tuple[Tensor, Tensor]
"""To train on, and held out."""

SPOILED: Mapping[str, Callable[[Tensor], Tensor]] = {
    "NaN": lambda delta: torch.full_like(delta, math.nan),
    "times 1e6": lambda delta: delta * 1e6,
    "sign flipped": lambda delta: -delta,
    "zeros": torch.zeros_like,
}
NEVER_MERGED = ("NaN", "times 1e6")
"""With the default guards."""
GUARDS: Mapping[str, Mapping[str, object]] = {
    "default": {},
    "off": {"norm_gate": 0.0, "strikes": 0},
    "clip, share 0.2": {"on_large": "clip", "max_share": 0.2},
}


@dataclass(frozen=True, slots=True)
class Result:
    """One run."""

    guards: str
    offers: str
    """What the last learner sent."""
    seed: int
    loss: float | None
    """Held out, at the end; None: not a number."""
    spoiled: int
    """Bodies that arrived spoiled."""
    merged: int
    """Of these."""
    rejected: int
    """Offers of the last learner."""
    rejected_others: int
    quarantines: int
    merges: int
    seconds: float


@dataclass(eq=False)
class Spoiler:
    """Stands between a learner's replica and its encoder."""

    change: Callable[[Tensor], Tensor]
    is_active: Callable[[], bool]
    digests: set[str] = field(default_factory=set)
    """Of the bodies that it has spoiled."""

    def attach(self, replica: Replica) -> None:
        """Spoil what this replica encodes from now on."""
        honest = replica.encode

        def encode(fragment: int, pending: Pending, out: Tensor | None = None) -> Tensor:
            if not self.is_active():
                return honest(fragment, pending, out)
            delta = self.change(pending.base - pending.snapshot)
            body = honest(fragment, Pending(pending.base, pending.base - delta, pending.arrival), out)
            self.digests.add(xxhash.xxh3_128_hexdigest(bytes_of(body)))
            return body

        replica.encode = encode  # type: ignore[method-assign]  # an experiment on this one object


def count_merged(run_dir: Path, name: str, digests: set[str]) -> tuple[int, int]:
    """How many of these bodies came in, and how many of them were merged."""
    view = read_run(run_dir)
    rounds = set()
    for _, _, item in view.entries():
        if isinstance(item, ev.Received) and isinstance(item.message, msg.Body):
            body = item.message
            if body.name == name and body.digest in digests:
                rounds.add((body.epoch, body.fragment, body.round))
    merged = {
        (record.epoch, record.fragment, record.round)
        for record in view.records
        if isinstance(record, RoundRecord) and name in [part.name for part in record.contributors]
    }
    return len(rounds), len(rounds & merged)


def config(guards: str, num_ticks: int) -> RunConfig:
    """Rounds often enough for a short run."""
    sync = {
        "num_learners": NUM_LEARNERS,
        "num_fragments": NUM_FRAGMENTS,
        "interval_steps": INTERVAL,
        "min_quorum": QUORUM,
        "alive_s": 60.0,
    }
    outer = {"learning_rate": 0.7, "momentum": 0.5}  # as in the recipes
    budget = {"ticks": num_ticks}
    return RunConfig.from_tables({"sync": sync, "outer": outer, "budget": budget, "guard": GUARDS[guards]})


@dataclass(eq=False)
class Trainee:
    """A learner with its model, its optimizer and its own random windows of the text."""

    url: str
    seed: int
    index: int
    text: Tensor
    model: Gpt = field(init=False)
    learner: atoll.Learner = field(init=False)

    def __post_init__(self) -> None:
        torch.manual_seed(self.seed)
        self.model = Gpt(WIDTH, LAYERS)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=RATE, betas=(0.9, 0.95))
        self.source = torch.Generator().manual_seed(1000 * self.seed + self.index)
        name = f"learner-{self.index}"
        self.learner = atoll.join(
            self.url, model=self.model, optimizer=self.optimizer, name=name, schedule=schedule
        )

    def step(self) -> None:
        """One step of the user's loop."""
        loss = self.model(batch(self.text, WINDOWS, self.source))
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.learner.step(tokens=WINDOWS * CONTEXT, loss=loss)


def train(url: str, offers: str, seed: int, since: float, text: Tensor) -> Spoiler | None:
    """Eight learners, one step each in turn, until the run is over."""
    crew = [Trainee(url, seed, index, text) for index in range(NUM_LEARNERS)]
    last, spoiler = crew[-1].learner, None
    if offers in SPOILED:
        spoiler = Spoiler(SPOILED[offers], lambda: last.progress >= since)
        spoiler.attach(last.shell.replica)
    deadline_s = time.monotonic() + LONGEST_S
    while not all(trainee.learner.finished for trainee in crew):
        if time.monotonic() > deadline_s:
            sys.exit(f"The run was not over after {LONGEST_S:g} s.")
        for trainee in crew:
            trainee.step()
    for trainee in crew:
        trainee.learner.leave()
    return spoiler


def run(guards: str, offers: str, seed: int, options: argparse.Namespace, texts: Texts) -> Result:
    """One run from its first learner to its held-out loss."""
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "bad-numbers"
        with atoll.Syncer(config(guards, options.steps), run_dir) as syncer:
            spoiler = train(syncer.url, offers, seed, options.since, texts[0])
            status, weights = syncer.status(), syncer.weights()
        last = f"learner-{NUM_LEARNERS - 1}"
        put_in = [n for n in status["notes"] if (n["kind"], n["who"]) == ("quarantined", last)]
        spoiled, merged = count_merged(run_dir, last, spoiler.digests) if spoiler else (0, 0)
    model = Gpt(WIDTH, LAYERS)
    assert not model.load_state_dict(weights, strict=False).unexpected_keys  # tied names may be missing
    loss = heldout(model, texts[1])
    rejected = {detail["name"]: detail["rejected"] for detail in status["learner_details"]}
    return Result(
        guards=guards,
        offers=offers,
        seed=seed,
        loss=loss if math.isfinite(loss) else None,
        spoiled=spoiled,
        merged=merged,
        rejected=rejected.pop(last),
        rejected_others=sum(rejected.values()),
        quarantines=len(put_in),
        merges=status["merges"],
        seconds=time.monotonic() - began_s,
    )


def plan(only: Sequence[str]) -> list[tuple[str, str]]:
    """Guards and offers of every run of a seed, the honest ones first."""
    kinds = [name for name in SPOILED if not only or any(word in name.lower() for word in only)]
    return [
        ("default", "honest"),
        ("default", "honest again"),
        *((g, kind) for g in GUARDS for kind in kinds),
    ]


def table_of(results: Sequence[Result]) -> str:
    """A markdown table for people: a row per setting, numbers by seed."""
    honest = {result.seed: result.loss for result in results if result.offers == "honest"}
    counts = ("spoiled", "merged", "rejected", "rejected_others", "quarantines")
    rows = []
    for key in dict.fromkeys((result.guards, result.offers) for result in results):
        mine = [result for result in results if (result.guards, result.offers) == key]
        percents = [percent(result.loss, honest[result.seed]) for result in mine]
        row = [*key, listed(result.loss for result in mine), listed(percents, "+.2f")]
        rows.append([*row, *(", ".join(str(getattr(result, name)) for result in mine) for name in counts)])
    titles = ["guards", "one of 8 sends", "held-out loss", "against honest, %", "spoiled offers", "merged"]
    return markdown([*titles, "rejected", "others' rejected", "quarantines"], rows)


def percent(loss: float | None, honest: float | None) -> float | None:
    """By how much a loss is worse."""
    return None if loss is None or honest is None else 100 * (loss / honest - 1)


def listed(values: Iterable[float | None], form: str = ".4f") -> str:
    """One number per seed."""
    return ", ".join("not a number" if value is None else format(value, form) for value in values)


def broken(results: Sequence[Result]) -> list[str]:
    """What must not be: with the default guards, NaN or numbers times 1e6 in the model; NaN with any."""
    return [
        f"{result.merged} offers of {result.offers} were merged: guards {result.guards}, seed {result.seed}"
        for result in results
        if result.merged
        and (result.offers == "NaN" or result.guards == "default")
        and result.offers in NEVER_MERGED
    ]


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--steps", type=int, default=240, help="budget in ticks")
    parser.add_argument(
        "--since", type=float, default=0.25, help="share of the run before it sends bad numbers"
    )
    parser.add_argument("--only", nargs="+", default=[], help="words of the kinds to try: nan 1e6 flip zero")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    parser.add_argument("--record", action="store_true", help="keep table and JSON in benchmarks/records/")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("atoll").setLevel(logging.ERROR)  # every rejected offer is a warning
    load = os.getloadavg()[0]
    print(f"measured, load {load:.2f};", ", ".join(f"{k} {v}" for k, v in hardware().items()))
    results, texts = [], corpus()
    for seed in options.seeds:
        for guards, offers in plan(options.only):
            results.append(result := run(guards, offers, seed, options, texts))
            told = f"{listed([result.loss])} in {result.seconds:.0f} s"
            print(f"seed {seed}, guards {guards}, {offers}: {told}", flush=True)
    table, wrong = table_of(results), broken(results)
    verdict = (
        "; ".join(wrong) or "With the default guards neither NaN nor numbers times 1e6 were merged once."
    )
    print(f"\n{table}\n\n{verdict}")
    whole = {
        "hardware": hardware(),
        "load": load,
        "steps": options.steps,
        "since": options.since,
        "runs": [asdict(result) for result in results],
        "broken": wrong,
    }
    if options.record:
        path = write_record("One learner of eight that sends bad numbers", f"{table}\n\n{verdict}", load)
        path.with_suffix(".json").write_text(json.dumps(whole, indent=1) + "\n")
        print(f"kept in {path}, and as JSON beside it")
    if options.json:
        print(json.dumps(whole))
    if wrong:
        sys.exit(1)


if __name__ == "__main__":
    main()
