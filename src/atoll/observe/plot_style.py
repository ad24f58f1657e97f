"""How our pictures look, and how they are written: one figure, one style, one way to a file.

matplotlib is an extra (`pip install 'atoll[plots]'`) and is imported when a picture is drawn, never
before. No pyplot: a figure belongs to the call that made it, and nothing is left behind in the process.
The same data give the same bytes: ids are salted with a constant, no date is written, and letters are
drawn as outlines, so that a picture looks the same where our font is not installed.

Colours are told apart by people who are colour-blind (Okabe and Ito) and, where they stand for an order,
grow darker with it. Lines carry their names at their ends: nobody has to look into a legend and back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from atoll.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "BLUES",
    "GREY",
    "INK",
    "ORDINARY",
    "PALE",
    "VERMILION",
    "bare",
    "heading",
    "percent",
    "picture",
    "spread",
    "swatches",
]

INK, GREY, PALE = "#1f2933", "#6b7683", "#d9dee3"
VERMILION = "#d55e00"
ORDINARY = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
BLUES = ("#5ba3cf", "#3a8ac0", "#1f6fb0", "#0b559f", "#08306b")
"""From light to dark: for what has an order."""

Corner = Literal["upper right", "lower left"]

SUFFIXES = (".svg", ".png")
WIDTH_INCHES = 9.0
DOTS_PER_INCH = 100  # 900 pixels wide
TITLE_LETTERS = 86
"""A title of so many letters fills the width; a longer one is set smaller."""

STYLE: Any = {  # matplotlib types every key of it, and not every version has the same
    "svg.hashsalt": "atoll",
    "svg.fonttype": "path",
    "font.family": ["DejaVu Sans"],
    "font.size": 9.5,
    "text.color": INK,
    "axes.edgecolor": GREY,
    "axes.labelcolor": GREY,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.facecolor": "white",
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.titlecolor": INK,
    "figure.facecolor": "white",
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "lines.linewidth": 2.0,
    "lines.solid_capstyle": "round",
    "hatch.linewidth": 0.6,
}


@contextmanager
def picture(path: Path, height_inches: float) -> Iterator[Figure]:
    """A figure in our style, 900 pixels wide, written to `path` when the block ends without an error."""
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(
            f"The picture {path} ends in {path.suffix or 'nothing'!r}.",
            "The ending says how to draw it, and that one is not known.",
            f"Use {' or '.join(SUFFIXES)}.",
        )
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(
            "Pictures are drawn with matplotlib, which is not installed.",
            "Everything else works without it.",
            "pip install 'atoll[plots]'",
        ) from error
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH_INCHES, height_inches), dpi=DOTS_PER_INCH)
        yield figure
        _write(figure, path)


def _write(figure: Figure, path: Path) -> None:
    is_svg = path.suffix.lower() == ".svg"
    metadata = {"Date": None, "Creator": "atoll"} if is_svg else {"Software": "atoll"}
    try:
        figure.savefig(path, metadata=metadata, dpi=DOTS_PER_INCH if is_svg else 2 * DOTS_PER_INCH)
    except OSError as error:
        raise ConfigError(
            f"The picture {path} cannot be written: {error}.",
            "What it shows was computed and is not lost: it is in the tables.",
            "Name a file in a directory that exists and can be written to.",
        ) from error


def heading(figure: Figure, finding: str, about: str) -> None:
    """What the picture shows, as a sentence, and below it how the figures came about."""
    height = figure.get_figheight()
    size = min(12.5, 12.5 * TITLE_LETTERS / len(finding))
    figure.text(0.012, 1 - 0.12 / height, finding, fontsize=size, fontweight="bold", va="top")
    figure.text(0.012, 1 - 0.40 / height, about, fontsize=9, color=GREY, va="top")


def percent(share: float) -> str:
    """As we write it: 88 %."""
    return f"{100 * share:.0f} %"


def swatches(axes: Axes, meanings: Mapping[str, str], at: tuple[float, float], where: Corner) -> None:
    """Small squares with what their colours mean, in a row beside the axes (in fractions of them)."""
    from matplotlib.patches import Patch

    axes.legend(
        handles=[Patch(facecolor=colour, label=word) for word, colour in meanings.items()],
        loc=where,
        bbox_to_anchor=at,
        ncols=len(meanings),
        frameon=False,
        borderpad=0,
        borderaxespad=0.3,
        handlelength=0.9,
        handleheight=0.9,
        handletextpad=0.4,
        columnspacing=1.1,
        fontsize=8.5,
        labelcolor=GREY,
    )


def bare(axes: Axes, *, grid: str = "y") -> None:
    """Takes away what carries no information; `grid` names the axes that get thin lines ('' for none)."""
    axes.tick_params(which="both", length=0, pad=5)
    axes.set_axisbelow(True)
    for name in grid:
        axes.grid(visible=True, axis="x" if name == "x" else "y", color=PALE, linewidth=0.7)


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Places for labels, at least `gap` apart, in the same order, as near to the wanted ones as can be.

    Neighbours that would overlap form a block around their mean; blocks that touch become one.
    """
    order = sorted(range(len(wanted)), key=lambda i: (wanted[i], i))
    gap = min(gap, (high - low) / max(len(wanted) - 1, 1))
    blocks: list[list[int]] = []
    starts: list[float] = []
    for index in order:
        blocks.append([index])
        starts.append(min(max(wanted[index], low), high))
        while len(blocks) > 1 and starts[-2] + gap * len(blocks[-2]) > starts[-1]:
            joined = blocks[-2] + blocks.pop()
            starts.pop()
            middle = sum(wanted[i] for i in joined) / len(joined)
            length = gap * (len(joined) - 1)
            blocks[-1] = joined
            starts[-1] = min(max(middle - length / 2, low), high - length)
    places = [0.0] * len(wanted)
    for block, start in zip(blocks, starts, strict=True):
        for rank, index in enumerate(block):
            places[index] = start + gap * rank
    return places
