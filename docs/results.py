"""Makes docs/results.md out of docs/results/*.json: python docs/results.py [--check | RUN.json...]

RUN.json is what `atoll lab run` wrote, such as runs/lab/parity-tiny/parity.json; it is taken into
docs/results. Then the pictures are drawn from the JSON and the page is written. With --check nothing is
written, and the exit code is 1 if a file is not what the JSON gives; a picture need only be there, for its
bits are those of one matplotlib. No figure of the page is typed by hand; only words are, and they stand
here: what is asked, what is planned, and what we make of what came out.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import get_args

from atoll.config import RunConfig
from atoll.observe.formats import duration
from atoll.observe.lab_tables import markdown, markdown_claims, sentence
from atoll.sim.lab.cell import SIZES
from atoll.sim.lab.report import Claim, Table, Verdict

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS.parent))

from docs.results_files import (  # noqa: E402  (found from the root of the repository)
    Result,
    laid_out,
    picture_files,
    redraw,
    stem_of,
    write_results,
)

MACHINE = "Measured on virtual machines with 2 cores (AMD EPYC, 60 to 120 GFlop/s each by MKL), no GPU."
"""On what all of it was run, in a sentence. Empty until it was."""


@dataclass(frozen=True, slots=True)
class Planned:
    """One section of the page: what is asked, and the runs that are to answer it, as (size, seeds)."""

    question: str
    runs: tuple[tuple[str, int], ...] = (("tiny", 5),)


SECTIONS: Mapping[str, Planned] = {
    "sweep": Planned(
        "Which learning rate, batch, eta and mu suit each method best? Every later comparison rests on it.",
        (("tiny", 1),),
    ),
    "rates": Planned(
        "Does the learning rate carry over to other M, sizes and tasks? Three around the transferred best "
        "are tried.",
        (("0.05M", 1), ("tiny", 1), ("0.2M", 1), ("0.4M", 1), ("small", 1)),
    ),
    "parity": Planned(
        "How far are DiLoCo, Streaming DiLoCo and Decoupled DiLoCo from Data-Parallel at M = 2, 4 and 8, and "
        "what does asynchrony add?",
        (("tiny", 5), ("small", 3)),
    ),
    "scaling": Planned(
        "Does the gap to Data-Parallel shrink with the size of the model, as fast as the published one?",
        (("small", 3),),
    ),
    "moe": Planned("Is asynchrony free for a mixture of experts?"),
    "vision": Planned("Is asynchrony free for images?"),
    "failures": Planned(
        "What do the failures of 1.2M chips cost in goodput and loss, over 8 learners or in lock-step?"
    ),
    "mixed-hardware": Planned(
        "Half of the learners are slower: by 18 %, by 2x, by 4x. What do quorum and grace window make of it?"
    ),
    "scavenging": Planned(
        "Extra learners come for half of the work. How much time is saved, and at what loss?"
    ),
    "non-iid": Planned(
        "Each learner sees another part of the library. What does the whole library say of it?"
    ),
    "learners": Planned("How does the loss change from 1 learner to 16, at equal tokens?"),
    "bits": Planned("How few bits can offers and publishes have, with and without error feedback?"),
    "merge-rule": Planned("Mean, RDA, or RDA with the mean on embeddings?"),
    "adopt": Planned("Overwrite, blend or rebase when a publish arrives?"),
    "outer": Planned("Which eta and mu for H = 4, 24 and 96?"),
    "closing-the-gap": Planned(
        "Which ideas bring the loss nearer to Data-Parallel, at equal tokens and no more bytes; by how much?"
    ),
}
"""In the order of the page. Fairness first, then quality, then the world, then the settings."""

REMARKS: Mapping[str, str] = {
    "merge-rule": "The paper merges by RDA. Here the mean did better at M = 8, and at M = 4 in the mean but "
    "not for sure, once its outer settings and learning rate were its own, and its runs are closer together; "
    "so it is our default. RDA's best rate at M = 4 was the lowest tried. That choice "
    "was made on these very seeds, and at 0.1M parameters. At M = 2 and 16 single runs at the seed for "
    "tuning went the other way (1.566 by RDA and 1.578 by the mean; 2.096 and 2.138): RDA needs less tuning "
    "from one M to the next, as the paper says.",
    "parity": "By our defaults two learners end below Data-Parallel and four within 2 % of it. Against "
    "constant momentum, each at its own best learning rate, that is 4 % less at M = 2 and 3 % less at M = 4 "
    "and 8; closing-the-gap says what the schedule of momentum does alone. DiLoCo and Streaming are as "
    "published; Streaming gains as much by the schedule. At M = 8 the gap is still 8 to 10 %: each learner "
    "takes one window a step, and there are half as many steps. Asynchrony cost nothing at M = 4 and a "
    "little at M = 2 (0.0 to 0.7 %; with constant momentum, in an earlier run of the same experiment, 0.2 to "
    "0.8 %). Decoupled merges 1.4 % fewer of its tokens than Streaming, for it adopts a fifth of a step "
    "later and one round in eighty lacks a learner; whether that is the reason we do not know. Data-Parallel "
    "is at batch 1, which no method with learners can have.",
    "rates": "Where several rates are near the best the choice among them is luck: two runs that differ in "
    "little more than rounding end up to half a percent apart.",
    "outer": "At H = 4 momentum of any kind loses to plain averages, at H = 24 and 96 plain averages lose by "
    "5 and 7 %: hence our defaults by H. At H = 24 a mu of 0.8 did as well as our 0.9, and at H = 96 perhaps "
    "better; the difference is below what five seeds can tell.",
    "bits": "Down to four bits nothing is lost that ten seeds could see, with or without error feedback. Two "
    "bits cost about 0.6 %, and error feedback gave nothing back. Why we do not know; a guess is that what "
    "rounding drops from an offer is learned again in the next interval, and that by then the old remainder "
    "is stale. It stays on: it costs no bytes, and other models may need it.",
    "adopt": "Rebase loses none of a learner's steps and gains nothing by it: at H = 24 it ended half a percent "
    "above overwrite, at H = 6, where overwrite drops a quarter of the tokens, not told apart. Steps made "
    "from old values seem to be worth little on top of new ones. Blend loses the more, the more a learner "
    "keeps of its own values. So overwrite, as in the paper.",
    "scavenging": "Borrowed learners save the time that they should, and here they cost loss: while they are "
    "there a step has more examples and the run fewer steps, and at 0.1M parameters more learners cost as "
    "much when they stay (learners: M = 8 is 7.6 % above M = 4). The learning rate is that of four learners "
    "throughout; eight would want a larger one.",
    "failures": "A pause costs nothing beside the time. A death costs more than the fleet model says: here "
    "every pause of every learner is made one, about once in 22 steps, which no real fleet has. What is "
    "lost is what was not offered yet. AdamW's moments matter most: without them the loss is 5 % higher.",
    "closing-the-gap": "Outer momentum that rises from 0 over the first tenth of the run and falls back "
    "to 0 over the last fifth costs nothing and takes 3 % off: it is our default now. It also makes more "
    "frequent rounds worth their bytes: int8 at half of H, no gain by itself, closes 90 % of the gap at "
    "M = 4 together with it and 45 % at M = 8 (42 to 49), which is not half. Four bits there, at half "
    "the bytes, were nearly as good when screened. Both ideas were added after single runs at seed 0 had "
    "shown them, and the learning rate is the one of the plain settings: with a rate of its own the "
    "schedule alone does better (parity). Part of the gain might be an end with smaller steps, which "
    "Data-Parallel was not given: its rate stops at a tenth. Against Data-Parallel with the mean of its "
    "last tenth, which gains 0.9 %, the best idea closes about 70 % of the first gap at M = 4. Averaging "
    "the last models helps everybody, Data-Parallel as well, so little of it closes the gap. At M = 8 "
    "eight windows a step are themselves 2.3 % worse than one for Data-Parallel (sweep), and learners "
    "with one window each have nothing to shrink.",
}
"""Experiment: what we make of it, written by hand once its results are in."""

DEFAULTS: Mapping[str, tuple[str, str]] = {
    "sync.merge_rule": (
        "RDA",
        "[merge-rule](#merge-rule): the mean is better than the paper's RDA at M = 8, and not worse at M = 4 "
        "and than RDA on all matrices; at 0.1M parameters.",
    ),
    "outer.learning_rate": (
        "not published",
        "At H = 24: the [sweep](#sweep) of Decoupled and of DiLoCo. Up to H = 8 it is 1: [outer](#outer).",
    ),
    "outer.momentum": (
        "not published",
        "As above; up to H = 8 it is 0. [outer](#outer): at H = 4 plain averages are best, at H = 24 and 96 "
        "they lose by 5 and 7 %.",
    ),
    "outer.momentum_warmup": (
        "no such thing",
        "[closing-the-gap](#closing-the-gap): with the cool-down it takes 3 % off the loss at M = 4 and at "
        "M = 8. Neither 0.1 nor 0.2 was swept.",
    ),
    "outer.momentum_cooldown": ("no such thing", "As above."),
    "codec.up": (
        "bf16",
        "[bits](#bits): int4 is not told apart from bf16 by ten seeds (below +0.5 %), and is the choice for "
        "thin links; bf16 asks for no trust in that.",
    ),
    "codec.down": ("bf16", "As above, both ways at once."),
    "codec.error_feedback": (
        "no such thing",
        "[bits](#bits): it changed nothing that could be seen, and costs no bytes.",
    ),
    "sync.adopt": (
        "overwrite",
        "[adopt](#adopt): within +0.1 % of the best other way, rebase, at H = 24; blend loses 1.4 to 5 %.",
    ),
    "sync.min_quorum": (
        "1",
        "With `sync.grace_fraction`: [mixed-hardware](#mixed-hardware). K = 1 with grace is better than "
        "K = M by 1.5 to 7 %, and without grace 25 to 42 % worse.",
    ),
    "guard.max_share": (
        "token weights",
        "[mixed-hardware](#mixed-hardware): with 1, weights go by tokens. At 18 % slower equal ones are not "
        "told apart; at 4x they are 1.0 % better (0.6 to 1.5), a finding that one experiment is too little "
        "to change the paper's rule for.",
    ),
}
"""Setting, such as outer.momentum: (the paper's value, why ours is what it is). Ours is `RunConfig`'s own."""

OPENING = """\
# What the lab found

Everything here rests on one claim: a model trained on islands that never wait for each other is as good as
one trained in lock-step. This page asks it of experiments that anybody can run again on a laptop:

- **Is asynchrony free?** Decoupled against synchronous Streaming DiLoCo: text, a mixture of experts, images.
- **How far is tuned Data-Parallel?** At M = 2, 4 and 8, beside the published gap; does it shrink with size?
- **What does the world cost?** Failing chips, slow islands, borrowed compute, learners with different data.
- **Which settings?** Bits, merge rule, adoption, outer rate and momentum, and ideas that close the gap.
"""

METHOD = """\
## How the lab works

- A learner's steps are real torch steps on a small model; everything else is the production code: the core,
  codecs, merge and outer optimizer of `atoll train`. Only Data-Parallel is a plain loop over the whole batch.
- Time is virtual. A calendar says when each learner steps, fails, returns and hears from the syncer; how busy
  the machine is changes nothing, and the same seed gives the same bits.
- A seed decides initial weights, data and the luck of the fleet. Two methods at one seed are a pair; a
  comparison is the mean difference over pairs with its 95 % interval (Student's t).
- *Holds*: the whole interval is on the right side of the limit. *Fails*: all of it is on the wrong side. *Not
  resolved*: the limit lies inside; the claim says how many seeds it would take. One seed never holds.
- Losing results stay. Figures of others are marked as theirs, extensions of them as ours.

[lab.md](lab.md) says how to run it, how to add an experiment, and what virtual time leaves out.
"""

FAIRNESS = """\
## Fairness

The rule: all methods start from the same weights, see the same data and train the same number of tokens, with
a learning rate that decays to a tenth. Each is shown at its own best as far as it was looked for. At `tiny`
and M = 4 all are swept by coordinate (learning rate, batch, then eta and mu) in the same manner, with at most
40 runs for each method; DiLoCo and Streaming merge by the mean, as they were published. At other M and tasks
three learning rates around the transferred best are tried, and one more while the best is the lowest or the
highest of them; eta and mu stay. At other sizes rate and batch follow compute by one published law for all
methods, and rates are tried in the same way for Data-Parallel and for Decoupled by our defaults at each M,
whose factor the other methods take: these are less well tuned there. Each method may choose its own batch;
one with learners takes at least an example for each of them, which Data-Parallel need not.

Our defaults have momentum that rises over the first tenth of a run and falls to 0 over the last fifth, and
learning rates that were tried with it; else they are the settings of Decoupled. That was found by
closing-the-gap when most experiments had been run. `parity`, `moe`, `vision`, `failures`, `scaling` and
`rates` were run again by our defaults; in `parity`, `moe` and `vision` the other methods were given them too,
with the learning rate that suits Decoupled. The other experiments have constant momentum, and what they call
the default is that.

Arms that claims of a fraction of a percent rest on were first given ten seeds at `tiny`, and most of those
claims stayed open. They were then given twenty, all at once, and the verdicts are those of the twenty.

Not everything was settled beforehand. After first runs had been seen (about 40 each time, thrown away) two
things were changed that also lower the gap to Data-Parallel: each place of a text is given the three bytes
before it, because equal runs ended too far apart (M = 4: +11..18 % to about +5 %), and the batches of methods
with learners may go down to 4 (+8 % to +5 %; Data-Parallel could go lower already). The digits were made
noisier for the same reason. All at the seed for tuning.
"""


def main(arguments: Sequence[str], docs: Path = DOCS) -> int:
    """Takes results in, makes page and pictures; with --check, says what would change (1: something)."""
    check = "--check" in arguments
    runs = [Path(argument) for argument in arguments if argument != "--check"]
    if wrong := [run for run in runs if check or not run.is_file()]:
        print(f"{wrong[0]} cannot be taken in. Give --check alone, or JSON files of `atoll lab run`.")
        return 2
    folder = docs / "results"
    for run in runs:
        folder.mkdir(exist_ok=True)
        result = json.loads(run.read_text("utf-8"))
        write_results(result, folder / f"{stem_of(result)}.json")
    made, results = made_files(docs), kept(docs).values()
    changed = [path for path, text in made.items() if not path.exists() or path.read_text("utf-8") != text]
    if check:
        pictures = [folder / file for one in results for file in picture_files(one)]
        changed += [path for path in pictures if not path.exists()]
    else:
        for path in changed:
            path.write_text(made[path], encoding="utf-8")
        changed += [path for one in results for path in redraw(one, folder)]
    for path in changed:
        print(f"{path.relative_to(docs)}: {'differs' if check else 'made again'}")
    print(f"{len(changed)} {'differ' if check else 'changed'}.")
    return 1 if check and changed else 0


def kept(docs: Path) -> dict[Path, Result]:
    """The results beside the page, by their files."""
    found = {path: json.loads(path.read_text("utf-8")) for path in sorted((docs / "results").glob("*.json"))}
    for path, result in found.items():
        if path.stem != stem_of(result) or result["experiment"] not in SECTIONS:
            raise SystemExit(
                f"{path.name} holds {stem_of(result)}. Name it so, and list it in docs/results.py."
            )
    return found


def made_files(docs: Path) -> dict[Path, str]:
    """What the files should hold: the JSON laid out, then the page that it gives."""
    results = kept(docs)
    made = {path: laid_out(result) for path, result in results.items()}
    return {**made, docs / "results.md": page(list(results.values()))}


def page(results: Sequence[Result]) -> str:
    """The whole page; a function of what was run and of nothing else."""
    order = list(SECTIONS)
    results = sorted(results, key=lambda one: (order.index(one["experiment"]), SIZES.index(one["size"])))
    parts = [OPENING, _found(results), METHOD, FAIRNESS, _swept(results)]
    for name, planned in SECTIONS.items():
        if ours := [one for one in results if one["experiment"] == name]:
            parts.append(_section(name, planned, ours))
    parts += [_defaults(), _not_run(results)]
    return "\n".join(part for part in parts if part)


def _found(results: Sequence[Result]) -> str:
    """The verdicts of all experiments in one table, on what machine, and how long it took."""
    if not results:
        return "**Nothing was run yet**, so nothing is claimed. What is planned: [below](#not-run-yet).\n"
    claims = [(one, claim) for one in results for claim in _claims(one)]
    words = ", ".join(f"{sum(c.verdict == w for _, c in claims)} {w}" for w in get_args(Verdict))
    runs = {row["key"]: row["cpu_s"] for one in results for row in one["rows"]}
    told = [
        f"**{len(claims)} claims: {words}.**" if claims else "**No claim was tested yet.**",
        f"{len(runs):,} training runs, {duration(sum(runs.values()))} of one core.",
        MACHINE or "The machine is not named yet.",
        "Not everything was run: see [what is missing](#not-run-yet)." if _missing(results) else "",
    ]
    summary = " ".join(part for part in told if part) + "\n"
    rows = [(c.verdict, sentence(c), f"[{stem_of(one)}](#{one['experiment']})") for one, c in claims]
    columns = ("verdict", "claim: figure (95 % interval), limit, seeds", "from")
    return f"{summary}\n{_table('All claims', columns, rows)}" if rows else summary


def _swept(results: Sequence[Result]) -> str:
    """How many runs each method was given to find its best."""
    lines = []
    for one in results:
        if one["experiment"] in ("sweep", "rates"):
            methods = {row["key"]: row["method"] for row in one["rows"]}
            counted = {method: list(methods.values()).count(method) for method in methods.values()}
            told = ", ".join(f"{method} {count}" for method, count in counted.items())
            lines.append(f"- Runs of [{stem_of(one)}](#{one['experiment']}): {told}.")
    return "\n".join([*lines, ""]) if lines else "The sweep was not run yet.\n"


def _section(name: str, planned: Planned, results: Sequence[Result]) -> str:
    """One experiment: the question, then for each size the command, tables, pictures and claims."""
    parts = [f"## {name}\n", f"{planned.question}\n"]
    for one in results:
        parts += [f"### {name}, {one['size']}\n"] if len(results) > 1 else []
        parts += _told(one)
    if name in REMARKS:
        parts.append(f"**Remark.** {REMARKS[name]}\n")
    return "\n".join(parts)


def _told(one: Result) -> Iterable[str]:
    """Everything about one run of an experiment."""
    stem = stem_of(one)
    runs = {row["key"]: row for row in one["rows"]}
    cpu_s, wall_s = (sum(row[name] for row in runs.values()) for name in ("cpu_s", "wall_s"))
    seeds = {row["seed"] for row in one["rows"]}
    yield f"```\n{one['command']}\n```\n"
    yield (
        f"Size {one['size']}, {_counted(len(seeds), 'seed')} with those that only choose, "
        f"{_counted(len(runs), 'training run')}: "
        f"{duration(cpu_s)} of one core; about {duration(wall_s / 2)} on the clock, two at a time. "
        f"Raw: [{stem}.json](results/{stem}.json).\n"
    )
    for file, picture in zip(picture_files(one), one["pictures"], strict=True):
        yield f"![{picture['title']}](results/{file})\n"
    for table in one["tables"]:
        yield _table(table["title"], table["columns"], table["rows"], table["notes"])
    for note in one["notes"]:
        yield f"{note}\n"
    if claims := _claims(one):
        yield markdown_claims(claims)


def _claims(one: Result) -> list[Claim]:
    """The claims of a result; JSON has no infinity, and null stands where an interval has no end."""
    claims = []
    for values in one["claims"]:
        if values["verdict"] not in get_args(Verdict):
            raise SystemExit(f"{values['verdict']!r} is no verdict: {values['text']}")
        open_ends = {"value": math.nan, "low": -math.inf, "high": math.inf}
        claims.append(Claim(**values | {k: end for k, end in open_ends.items() if values[k] is None}))
    return claims


def _defaults() -> str:
    """The settings that `RunConfig()` comes with, beside the paper's, and why."""
    head = "## Defaults and their evidence\n\n"
    if not DEFAULTS:
        return head + "Not chosen from results yet.\n"
    rows = [(f"`{name}`", _default(name), paper, why) for name, (paper, why) in DEFAULTS.items()]
    return head + _table("What `RunConfig()` comes with", ("setting", "value", "paper", "why"), rows)


def _default(name: str) -> str:
    value = reduce(getattr, name.split("."), RunConfig())
    return f"`{value}`"


def _missing(results: Sequence[Result]) -> list[tuple[str, str, int]]:
    """Planned runs without a result, or with one of fewer seeds: experiment, size, seeds."""
    there = {(one["experiment"], one["size"]): one["seeds"] for one in results}
    return [
        (name, size, seeds)
        for name, planned in SECTIONS.items()
        for size, seeds in planned.runs
        if there.get((name, size), 0) < seeds
    ]


def _not_run(results: Sequence[Result]) -> str:
    """What is planned and has no result, with the command that would give it."""
    missing = _missing(results)
    if not missing:
        return ""
    rows = [
        (name, SECTIONS[name].question, f"`atoll lab run {name} --size {size} --seeds {seeds} --jobs 2`")
        for name, size, seeds in missing
    ]
    return "## Not run yet\n\n" + _table("Planned", ("experiment", "question", "command"), rows)


def _table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str] = ()
) -> str:
    shown = tuple(tuple(row) for row in rows)
    return markdown(Table(title=title, columns=tuple(columns), rows=shown, notes=tuple(notes)))


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
