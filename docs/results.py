"""Makes docs/results.md of docs/results/*.json: python docs/results.py [--check | --rest DIR | RUN.json...]

RUN.json is what `atoll lab run` wrote, such as runs/lab/parity-tiny/parity.json; it is taken into
docs/results. Then the pictures are drawn from the JSON and the page is written. With --check nothing is
written, and the exit code is 1 if a file is not what the JSON gives; a picture need only be there, for its
bits are those of one matplotlib. With --rest the rows of a shelf (runs/lab) that no result shows are kept in
docs/results/unfinished. Tables, claims and notes come from the JSON, words from `results_words`.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import get_args

from atoll.cli.lab_run import row_json
from atoll.config import RunConfig
from atoll.observe.formats import duration
from atoll.observe.lab_tables import figure_of, limit_of, markdown, markdown_claims, sentence
from atoll.sim.lab.cell import SIZES, Cell, Fleet, Row
from atoll.sim.lab.estimate import Plan, plan
from atoll.sim.lab.experiments import EXPERIMENTS
from atoll.sim.lab.experiments.common import FIRST_SCREEN_SEED
from atoll.sim.lab.experiments.sweep import LEARNERS as SWEPT_LEARNERS
from atoll.sim.lab.report import Claim, Request, Table, Verdict
from atoll.sim.lab.shelf import Shelf
from atoll.sim.lab.tuned import TUNING_SEED

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS.parent))

from docs.results_files import (  # noqa: E402  (found from the root of the repository)
    Result,
    laid_out,
    laid_out_rows,
    picture_files,
    redraw,
    stem_of,
    write_results,
)
from docs.results_words import (  # noqa: E402  (the same)
    DEFAULTS,
    FAIRNESS,
    MACHINE,
    METHOD,
    OPENING,
    REMARKS,
    SCORE,
    SECTIONS,
    Scored,
)

OLDER_MARK = " †"
"""Behind what was not run by the experiment as it is now."""


def main(arguments: Sequence[str], docs: Path = DOCS) -> int:
    """Takes results in, makes page and pictures; with --check, says what would change (1: something)."""
    if arguments[:1] == ["--rest"] and len(arguments) == 2 and Path(arguments[1]).is_dir():
        return _keep_rest(Path(arguments[1]), docs)
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


def _keep_rest(shelf: Path, docs: Path) -> int:
    """Keep the rows of a shelf that no result shows, so that `atoll lab take` finds them elsewhere."""
    shown = {row["key"] for one in kept(docs).values() for row in one["rows"]}
    rest = [row_json(row) for row in Shelf(shelf).rows() if row.cell.key not in shown]
    path = docs / "results" / "unfinished" / "rows.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(laid_out_rows(rest), encoding="utf-8")
    print(f"{path.relative_to(docs)}: {_counted(len(rest), 'row')}.")
    return 0


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
    parts = [OPENING, _score(results), _found(results), METHOD]
    parts += [_section(name, results) for name, planned in SECTIONS.items() if not planned.is_tuning]
    parts += [_defaults(), FAIRNESS, _swept(results)]
    parts += [_section(name, results) for name, planned in SECTIONS.items() if planned.is_tuning]
    parts += [_all_claims(results), _older(results), _not_run(results)]
    return "\n".join(part for part in parts if part)


def _score(results: Sequence[Result]) -> str:
    """What matters most in a few lines, each a claim in short; its whole sentence stands further below."""
    by_stem = {stem_of(one): one for one in results}
    rows = []
    for line in SCORE:
        claim = _scored(line, by_stem)
        if claim is not None:
            words, limit = figure_of(claim), limit_of(claim)
            link = f"[{line.experiment}](#{line.experiment})"
            rows.append((line.asked, limit, words, str(claim.seeds), claim.verdict, link))
    if not rows:
        return ""
    return _table(
        "In short", ("asked", "limit", "measured (95 % interval)", "seeds", "verdict", "from"), rows
    )


def _scored(line: Scored, by_stem: Mapping[str, Result]) -> Claim | None:
    """The claim behind one line, if its experiment was run."""
    stem = f"{line.experiment}-{line.size}"
    found = [claim for claim in _claims(by_stem[stem]) if line.claim in claim.text] if stem in by_stem else []
    return found[0] if len(found) == 1 else None


def _found(results: Sequence[Result]) -> str:
    """How many claims there are and how they ended, on what machine, and how long it took."""
    if not results:
        return "**Nothing was run yet**, so nothing is claimed. What is planned: [below](#not-run-yet).\n"
    claims = [claim for one in results for claim in _claims(one)]
    tested = [claim for claim in claims if not claim.is_check]
    words = ", ".join(f"{sum(c.verdict == w for c in tested)} {w}" for w in get_args(Verdict))
    checks = [claim for claim in claims if claim.is_check]
    failed = sum(check.verdict != "holds" for check in checks)
    runs = {row["key"]: row["cpu_s"] for one in results for row in one["rows"]}
    told = [
        f"**[{len(tested)} claims](#all-claims): {words}.**" if tested else "**No claim was tested yet.**",
        f"{_counted(len(checks), 'check')} of the lab itself: {failed or 'none'} failed." if checks else "",
        f"{len(runs):,} training runs, {duration(sum(runs.values()))} of one core.",
        MACHINE or "The machine is not named yet.",
        "Not everything was run: see [what is missing](#not-run-yet)." if _missing(results) else "",
    ]
    return " ".join(part for part in told if part) + "\n"


def _all_claims(results: Sequence[Result]) -> str:
    """Every claim and check, each with its verdict."""
    rows = []
    for one in results:
        mark = OLDER_MARK if _lacking(one).to_train else ""
        link = f"[{stem_of(one)}](#{one['experiment']}){mark}"
        rows += [(claim.verdict, sentence(claim), link) for claim in _claims(one)]
    if not rows:
        return ""
    columns = ("verdict", "claim: figure (95 % interval), limit, seeds", "from")
    table = _table("Each with its verdict", columns, rows)
    note = f"{OLDER_MARK}: [to be run again](#to-be-run-again).\n".lstrip()
    return f"## All claims\n\n{table}{note if any(OLDER_MARK in row[2] for row in rows) else ''}"


def _swept(results: Sequence[Result]) -> str:
    """How many runs each method was given to find its best, and how many settings of it were looked at."""
    lines = []
    for one in results:
        if one["experiment"] in ("sweep", "rates", "batches"):
            methods = {row["key"]: row["method"] for row in one["rows"]}
            counted = {method: list(methods.values()).count(method) for method in methods.values()}
            told = ", ".join(f"{method} {count}" for method, count in counted.items())
            lines.append(f"- Runs of [{stem_of(one)}](#{one['experiment']}): {told}.")
    if tried := _settings_tried(results):
        told = ", ".join(f"{method} {count}" for method, count in tried.items())
        lines.append(
            "- Settings of a text at `tiny`, with four learners of a calm fleet, that were looked at with "
            f"seeds that only choose, in all experiments of this page: {told}."
        )
    return "\n".join([*lines, ""]) if lines else "The sweep was not run yet.\n"


def _settings_tried(results: Sequence[Result]) -> dict[str, int]:
    """Distinct settings at the seeds that only choose: a text, `tiny`, four learners of a calm fleet."""
    found: dict[str, set[Cell]] = {}
    for one in results:
        for row in one["rows"]:
            cell = Cell.of(row["cell"]).plain()
            is_like_sweep = (cell.task, cell.size, cell.fleet) == ("text", "tiny", Fleet())
            has_count = cell.learners == (1 if cell.method == "data-parallel" else SWEPT_LEARNERS)
            if is_like_sweep and has_count and _chooses(cell.seed):
                found.setdefault(cell.method, set()).add(replace(cell, seed=0))
    return {method: len(found[method]) for method in sorted(found)}


def _section(name: str, results: Sequence[Result]) -> str:
    """One experiment: the question, then for each size the command, tables, pictures and claims; nothing if
    it was not run."""
    results = [one for one in results if one["experiment"] == name]
    if not results:
        return ""
    parts = [f"## {name}\n", f"{SECTIONS[name].question}\n"]
    for one in results:
        parts += [f"### {name}, {one['size']}\n"] if len(results) > 1 else []
        parts += _told(one)
    if name in REMARKS:
        parts.append(f"**Remark.** {_one_line(REMARKS[name])}\n")
    return "\n".join(parts)


def _told(one: Result) -> Iterable[str]:
    """Everything about one run of an experiment."""
    stem = stem_of(one)
    runs = {row["key"]: row for row in one["rows"]}
    cpu_s, wall_s = (sum(row[name] for row in runs.values()) for name in ("cpu_s", "wall_s"))
    seeds = {row["seed"] for row in one["rows"]}
    yield f"```\n{one['command']}\n```\n"
    yield (
        f"Size {one['size']}, {_counted(len(seeds), 'seed')}{_choosing(seeds)}, "
        f"{_counted(len(runs), 'training run')}: "
        f"{duration(cpu_s)} of one core; about {duration(wall_s / 2)} on the clock if two run at a time. "
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


def _choosing(seeds: Collection[int]) -> str:
    """Says if there are seeds among them that no claim uses."""
    choosing = [seed for seed in seeds if _chooses(seed)]
    return f" ({len(choosing)} of them only to choose)" if choosing else ""


def _chooses(seed: int) -> bool:
    return seed == TUNING_SEED or seed >= FIRST_SCREEN_SEED


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
    rows = [(f"`{name}`", _default(name), paper, _one_line(why)) for name, (paper, why) in DEFAULTS.items()]
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


def _older(results: Sequence[Result]) -> str:
    """Results of experiments that would ask for other runs today."""
    rows = []
    for one in results:
        if (lacking := _lacking(one)).to_train:
            command = _command(one["experiment"], one["size"], one["seeds"])
            rows.append((stem_of(one), f"{lacking.to_train} of {lacking.cells}", command))
    if not rows:
        return ""
    told = (
        "## To be run again\n\nThese experiments have changed since (other settings, arms or seeds). Their "
        "tables and claims are of the runs that were made, with the settings named there.\n\n"
    )
    return told + _table("Older results", ("result", "runs that are missing", "command"), rows)


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of one result, by key."""

    by_key: Mapping[str, Row]

    def find(self, cell: Cell) -> Row | None:
        """The row of a cell."""
        return self.by_key.get(cell.key)


def _lacking(one: Result) -> Plan:
    """What the experiment would train today if it had the rows of its result."""
    rows = _Rows({row["key"]: Row.of(row) for row in one["rows"]})
    request = Request(size=one["size"], seeds=one["seeds"])
    return plan(EXPERIMENTS[one["experiment"]], request, rows)


def _not_run(results: Sequence[Result]) -> str:
    """What is planned and has no result, with the command that would give it."""
    missing = _missing(results)
    if not missing:
        return ""
    rows = [(name, SECTIONS[name].question, _command(name, size, seeds)) for name, size, seeds in missing]
    return "## Not run yet\n\n" + _table("Planned", ("experiment", "question", "command"), rows)


def _command(name: str, size: str, seeds: int) -> str:
    return f"`atoll lab run {name} --size {size} --seeds {seeds} --jobs 2`"


def _table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str] = ()
) -> str:
    shown = tuple(tuple(row) for row in rows)
    return markdown(Table(title=title, columns=tuple(columns), rows=shown, notes=tuple(notes)))


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
