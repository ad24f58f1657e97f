"""Makes the pictures and the tables of docs/scale.md again: python docs/scale_pictures.py [--check] [NAME...]

Every table of the page stands between `<!-- NAME -->` and `<!-- /NAME -->`, below the command that made it.
This script runs the commands and writes what they answer in their place; with --check it writes nothing and
says what differs. No figure of a table is typed by hand. NAME limits it to some of them.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS.parent))

from docs.scale_tables import TABLES, page_with, run  # noqa: E402  (found from the root of the repository)

PICTURES = {
    "scale-goodput.svg": "atoll simulate goodput --preset paper-table1 --plot",
    "scale-week.svg": (
        "atoll simulate goodput --chips 2.4M --learners 16 --days 7 --repetitions 1 --seed 1 "
        "--shock site:every=20d,share=1,down=8h --shock power:every=14d,share=0.5,down=6h --timeline"
    ),
    "scale-utilisation.svg": (
        "atoll simulate bandwidth --params 12B --step 2s --sites 4 --bits 16,4 --rtt 60ms --plot"
    ),
}
"""File: the command that draws it, to which its path is added."""


def main(arguments: list[str]) -> int:
    """Makes everything, or what is named; with --check, says what would change. 1 if something would."""
    check = "--check" in arguments
    names = [name for name in arguments if name != "--check"]
    known = [*PICTURES, *TABLES]
    if unknown := [name for name in names if name not in known]:
        print(f"There is no {unknown[0]}. Known: {', '.join(known)}.")
        return 2
    changed = [name for name in names or known if _remake(name, check)]
    for name in changed:
        print(f"{name}: {'differs' if check else 'made again'}")
    print(f"{len(changed)} of {len(names or known)} {'differ' if check else 'changed'}.")
    return 1 if check and changed else 0


def _remake(name: str, check: bool) -> bool:
    """Whether a picture or a table differs from what the command gives now."""
    if name in TABLES:
        page = DOCS / "scale.md"
        before = page.read_text(encoding="utf-8")
        after = page_with(before, name)
        if not check:
            page.write_text(after, encoding="utf-8")
        return after != before
    with tempfile.TemporaryDirectory() as folder:
        drawn = Path(folder) / name
        run(f"{PICTURES[name]} {drawn}")
        kept = DOCS / name
        differs = not kept.exists() or kept.read_bytes() != drawn.read_bytes()
        if differs and not check:
            kept.write_bytes(drawn.read_bytes())
    return differs


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
