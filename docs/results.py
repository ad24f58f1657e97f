"""Makes docs/results.md out of docs/results/*.json: python docs/results.py [--check]

The JSON files are what `atoll lab run` wrote, the pictures beside them what it drew. This script lays each
JSON file out with one training run on a line, so that diffs read, and writes the page. With --check it writes
nothing and exits with 1 if a file is not what the JSON gives. No figure of the page is typed by hand; only
words are, and they stand here: what is asked, what is planned, and what we make of what came out.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any, get_args

from atoll.config import RunConfig
from atoll.observe.formats import duration
from atoll.observe.lab_tables import markdown, markdown_claims, sentence
from atoll.sim.lab.cell import SIZES
from atoll.sim.lab.report import Claim, Table, Verdict

DOCS = Path(__file__).resolve().parent
CURVE_DIGITS = 4

MACHINE = ""
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
        "Which ideas bring the loss nearer to Data-Parallel, at equal tokens and bytes, and by how much?"
    ),
}
"""In the order of the page. Fairness first, then quality, then the world, then the settings."""

REMARKS: Mapping[str, str] = {}
"""Experiment: what we make of it, written by hand once its results are in."""

DEFAULTS: Mapping[str, tuple[str, str]] = {}
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
  codecs, merge and outer optimizer of `atoll train`.
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
a learning rate that decays. Each is shown at its own best. At `tiny` and M = 4 all are swept by coordinate
(learning rate, batch, then eta and mu) in the same manner, with at most 40 runs for each method. At other M,
sizes and tasks three learning rates around the transferred best are tried; at sizes other than `tiny` that is
done for Data-Parallel and Decoupled, and DiLoCo and Streaming follow Decoupled. Each method may
choose its own batch.
"""


def main(arguments: Sequence[str], docs: Path = DOCS) -> int:
    """Makes the page and lays out its JSON; with --check, says what would change. 1 if something would."""
    if unknown := [argument for argument in arguments if argument != "--check"]:
        print(f"{unknown[0]} means nothing here. Known: --check.")
        return 2
    check = "--check" in arguments
    made = made_files(docs)
    changed = [path for path, text in made.items() if not path.exists() or path.read_text("utf-8") != text]
    for path in changed:
        if not check:
            path.write_text(made[path], encoding="utf-8")
        print(f"{path.relative_to(docs)}: {'differs' if check else 'made again'}")
    print(f"{len(changed)} of {len(made)} {'differ' if check else 'changed'}.")
    return 1 if check and changed else 0


def made_files(docs: Path) -> dict[Path, str]:
    """What the files should hold: the JSON laid out, then the page that it gives."""
    results = {
        path: json.loads(path.read_text("utf-8")) for path in sorted((docs / "results").glob("*.json"))
    }
    for path, result in results.items():
        if path.stem != _stem(result) or result["experiment"] not in SECTIONS:
            raise SystemExit(
                f"{path.name} holds {_stem(result)}. Name it so, and list it in docs/results.py."
            )
    pictures = [path.name for path in sorted((docs / "results").glob("*.png"))]
    made = {path: laid_out(result) for path, result in results.items()}
    made[docs / "results.md"] = page(list(results.values()), pictures)
    return made


def write_results(result: Mapping[str, Any], path: Path) -> None:
    """Write what an experiment ended in, laid out for diffs."""
    path.write_text(laid_out(result), encoding="utf-8")


def laid_out(result: Mapping[str, Any]) -> str:
    """JSON with one key on a line, and one item on a line within lists; points of curves are rounded."""
    rows = [{**row, "curve": _rounded(row["curve"])} if "curve" in row else row for row in result["rows"]]
    lines = [f"{json.dumps(key)}: {_item(value)}" for key, value in {**result, "rows": rows}.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def page(results: Sequence[Mapping[str, Any]], pictures: Sequence[str]) -> str:
    """The whole page; a function of what was run and of nothing else."""
    order = list(SECTIONS)
    results = sorted(results, key=lambda one: (order.index(one["experiment"]), SIZES.index(one["size"])))
    parts = [OPENING, _found(results), METHOD, FAIRNESS, _swept(results)]
    for name, planned in SECTIONS.items():
        if ours := [one for one in results if one["experiment"] == name]:
            parts.append(_section(name, planned, ours, pictures))
    parts += [_defaults(), _not_run(results)]
    return "\n".join(part for part in parts if part)


def _found(results: Sequence[Mapping[str, Any]]) -> str:
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
    rows = [(c.verdict, sentence(c), f"[{_stem(one)}](#{one['experiment']})") for one, c in claims]
    columns = ("verdict", "claim: figure (95 % interval), limit, seeds", "from")
    return f"{summary}\n{_table('All claims', columns, rows)}" if rows else summary


def _swept(results: Sequence[Mapping[str, Any]]) -> str:
    """How many runs each method was given to find its best."""
    lines = []
    for one in results:
        if one["experiment"] in ("sweep", "rates"):
            methods = {row["key"]: row["method"] for row in one["rows"]}
            counted = {method: list(methods.values()).count(method) for method in methods.values()}
            told = ", ".join(f"{method} {count}" for method, count in counted.items())
            lines.append(f"- Runs of [{_stem(one)}](#{one['experiment']}): {told}.")
    return "\n".join([*lines, ""]) if lines else "The sweep was not run yet.\n"


def _section(
    name: str, planned: Planned, results: Sequence[Mapping[str, Any]], pictures: Sequence[str]
) -> str:
    """One experiment: the question, then for each size the command, tables, pictures and claims."""
    parts = [f"## {name}\n", f"{planned.question}\n"]
    for one in results:
        parts += [f"### {name}, {one['size']}\n"] if len(results) > 1 else []
        parts += _told(one, pictures)
    if name in REMARKS:
        parts.append(f"**Remark.** {REMARKS[name]}\n")
    return "\n".join(parts)


def _told(one: Mapping[str, Any], pictures: Sequence[str]) -> Iterable[str]:
    """Everything about one run of an experiment."""
    stem = _stem(one)
    runs = {row["key"]: row["cpu_s"] for row in one["rows"]}
    yield f"```\n{one['command']}\n```\n"
    yield (
        f"Size {one['size']}, {_counted(one['seeds'], 'seed')}, {_counted(len(runs), 'training run')}: "
        f"{duration(sum(runs.values()))} of one core; the last command took {duration(one['wall_s'])}. "
        f"Raw: [{stem}.json](results/{stem}.json).\n"
    )
    for picture in pictures:
        if re.fullmatch(rf"{re.escape(stem)}(-\d+)?\.png", picture):
            yield f"![{stem}](results/{picture})\n"
    for table in one["tables"]:
        yield _table(table["title"], table["columns"], table["rows"], table["notes"])
    for note in one["notes"]:
        yield f"{note}\n"
    if claims := _claims(one):
        yield markdown_claims(claims)


def _claims(one: Mapping[str, Any]) -> list[Claim]:
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


def _missing(results: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, int]]:
    """Planned runs without a result: experiment, size, seeds."""
    there = {(one["experiment"], one["size"]) for one in results}
    return [
        (name, size, seeds)
        for name, planned in SECTIONS.items()
        for size, seeds in planned.runs
        if (name, size) not in there
    ]


def _not_run(results: Sequence[Mapping[str, Any]]) -> str:
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


def _item(value: Any) -> str:
    if not isinstance(value, list) or not value:
        return _compact(value)
    return "[\n" + ",\n".join(_compact(item) for item in value) + "\n]"


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _rounded(curve: Sequence[Sequence[float]]) -> list[list[float]]:
    return [[round(number, CURVE_DIGITS) for number in point] for point in curve]


def _stem(one: Mapping[str, Any]) -> str:
    return f"{one['experiment']}-{one['size']}"


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
