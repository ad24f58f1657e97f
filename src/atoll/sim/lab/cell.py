"""One training run, named by everything that its bits follow from.

Equal cells give equal rows, bit for bit, on the same machine; so a finished cell is kept under its key and
never run twice. Settings of the protocol carry the names of `RunConfig`, and defaults that never change, so
that keys stay; those of training are the lab's own. What a method does not use is set to one value
(`Cell.plain`), so that Data-Parallel is not trained again because somebody asked for another outer rate.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, Literal, get_args

from atoll.errors import ConfigError

__all__ = [
    "METHODS", "PYTHON", "SIZES", "TASKS", "VERSIONS", "Cell", "Fleet", "Ideas", "Method", "Row", "Size",
    "Task",
]  # fmt: skip

Task = Literal["text", "moe", "vision"]
Method = Literal["data-parallel", "elastic", "diloco", "streaming", "decoupled"]
Size = Literal["0.05M", "tiny", "0.2M", "0.4M", "small"]
TASKS: tuple[Task, ...] = get_args(Task)
METHODS: tuple[Method, ...] = get_args(Method)
SIZES: tuple[Size, ...] = get_args(Size)

PYTHON = "{}.{}".format(*sys.version_info[:2])
"""The text is the standard library's own, which every minor version writes anew."""
VERSIONS: Mapping[Task, int] = MappingProxyType({"text": 3, "moe": 3, "vision": 4})
"""By task: counted up when the same settings give other bits or are scored on other data; rows of another
version are not found again."""


RETIRED = (("grace_min_steps", 0.0),)
"""Settings that there are no more, with the value at which they did nothing: older rows name them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fleet:
    """Who trains, how fast, and what befalls them; time is virtual."""

    step_s: float = 1.0
    """A step of a learner at speed 1 with all its chips."""
    speeds: tuple[float, ...] = ()
    """Of each learner, 1 if not given; a learner of half the speed takes twice as long for the same batch."""
    jitter: float = 0.02
    """Single steps last up to this share more or less."""
    chips: int = 0
    """Chips of the whole fleet that fail and come back as the fleet model says; 0: nothing fails."""
    mtbi_s: float = 0.0
    """Mean time between interruptions of one chip."""
    extra: int = 0
    """Learners beyond the first ones that are present for the first half of the work and then leave."""
    has_deaths: bool = False
    """Whether a learner's pause is a death of its process: a new life that has to heal."""
    loses_moments: bool = False
    """Whether a new life begins with fresh AdamW moments; else they come back as they were at death."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ideas:
    """What may close the gap to Data-Parallel and is no setting of the runtime (yet)."""

    eta_end: float = 0.0
    """The outer rate moves in a line to this over the run; 0: it stays."""
    mean_moments: bool = False
    """Offers carry AdamW's moments, and learners adopt their mean; thrice the bytes, up and down."""
    average_last: float = 0.0
    """The model is the mean of the global models over this last share of the run; 0: the last one."""
    early_interval: int = 0
    """H for the first `early_share` of the run; 0: the same H throughout."""
    early_share: float = 0.0
    plain_last: float = 0.0
    """Share of the run, at its end, in which merges are plain averages: the mean, eta 1, mu 0."""
    beta2: float = 0.0
    """AdamW's memory of squares; 0: the recipe's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """The settings of one training run."""

    task: Task = "text"
    size: Size = "tiny"
    method: Method = "decoupled"
    learners: int = 4
    seed: int = 1
    """Decides initial weights, the order of the data, and the luck of the fleet."""
    tokens: int
    """Trained by all learners together; images for `vision`."""
    batch: int
    """Examples that all learners together take in one step: windows of a text, or images."""
    learning_rate: float
    eta: float = 0.4
    mu: float = 0.9
    momentum_warmup: float = 0.0
    """Share of the run over which mu rises from 0."""
    momentum_cooldown: float = 0.0
    """Share of the run, at its end, over which mu falls to 0."""
    interval_steps: int = 24
    num_fragments: int = 24
    overlap_steps: int = 2
    quorum: int = 1
    grace_rule: str = "slack"
    grace_fraction: float = 0.8
    grace_max_steps: float = 1.0
    adopt: str = "overwrite"
    blend_alpha: float = 0.5
    codec_up: str = "bf16"
    codec_down: str = "bf16"
    error_feedback: bool = True
    merge_rule: str = "rda"
    """`rda` (mean on embeddings and vectors), `mean`, or `rda-everywhere` (embeddings too)."""
    max_share: float = 1.0
    """Largest share of a merge's weight that one learner may have; at 1/M or below all weigh the same."""
    own_parts: bool = False
    """Each learner sees another part of the library, instead of windows from all of it."""
    fleet: Fleet = field(default_factory=Fleet)
    ideas: Ideas = field(default_factory=Ideas)

    def __post_init__(self) -> None:
        if self.learners < 1 or self.tokens < 1 or self.batch < self.learners or self.batch % self.learners:
            raise ConfigError(
                f"A cell has {self.learners} learners, a batch of {self.batch} and {self.tokens} tokens.",
                "Every learner takes the same whole number of examples in a step, at least one.",
                "Give a batch that is a multiple of the learners.",
            )

    @property
    def key(self) -> str:
        """Names the cell on disk: a digest of what its plain settings have changed and of its task's version.

        A setting at its default is left out, so that one more setting in the lab does not rename every cell.
        """
        text = json.dumps([VERSIONS[self.task], _changed(self.plain())], sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()

    def plain(self) -> Cell:
        """The same run with every setting that its method does not use at its default."""
        if self.method in ("data-parallel", "elastic"):
            fleet = self.fleet if self.method == "elastic" else Fleet()
            ideas = Ideas(average_last=self.ideas.average_last, beta2=self.ideas.beta2)
            return Cell(
                task=self.task, size=self.size, method=self.method, learners=1, seed=self.seed,
                tokens=self.tokens, batch=self.batch, learning_rate=self.learning_rate, fleet=fleet,
                ideas=ideas,
            )  # fmt: skip
        if self.method == "diloco":
            return replace(self, num_fragments=1, quorum=1)
        return replace(self, quorum=1) if self.method == "streaming" else self

    def settings(self) -> dict[str, Any]:
        """Plain values that fit into JSON; `Cell.of` makes them a cell again."""
        return asdict(self)

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Cell:
        """The cell whose `settings()` these are."""
        settings = {name: value for name, value in settings.items() if (name, value) not in RETIRED}
        parts = {name: dict(settings.get(name, {})) for name in ("fleet", "ideas")}
        parts["fleet"]["speeds"] = tuple(parts["fleet"].get("speeds", ()))
        try:
            fleet, ideas = Fleet(**parts["fleet"]), Ideas(**parts["ideas"])
            return cls(**{**settings, "fleet": fleet, "ideas": ideas})
        except TypeError as error:  # a name that is not known, or one without a default that is missing
            raise ConfigError(
                f"These are no settings of a cell: {error}.",
                "The run they name cannot be made again.",
                "They belong to another version of the lab: run the experiment again.",
            ) from error


def _changed(settings: Cell | Fleet | Ideas) -> dict[str, Any]:
    """The settings that are not at their defaults."""
    found: dict[str, Any] = {}
    for one in fields(settings):
        value = getattr(settings, one.name)
        if isinstance(value, Fleet | Ideas):
            if inner := _changed(value):
                found[one.name] = inner
        elif value != one.default:
            found[one.name] = float(value) if one.type == "float" else value  # 1 and 1.0 are one setting
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """What came of a cell. Ratios are fractions of 1; all but the times follow from the settings."""

    cell: Cell
    parameters: int
    heldout_loss: float
    """Of the merged model, in nats per token or image."""
    accuracy: float
    """Share of held-out targets ranked first."""
    curve: tuple[tuple[float, float], ...]
    """(share of the tokens, held-out loss of the merged model on a part of the held-out data)."""
    tokens: int
    """Trained, by all learners together."""
    steps: int
    """Of all learners together."""
    merges: int
    goodput: float
    """Tokens of steps kept / tokens that all chips could have trained since each learner's admission."""
    model_goodput: float
    """What the fleet model says of the same schedule; 1 if nothing fails."""
    participation: float
    """Offers merged / (rounds x learners live when they opened)."""
    participants: float
    """Offers in a merge, on average."""
    merged_share: float
    """Share of the trained tokens that were merged; the rest was overwritten, late or lost."""
    stall_fraction: float
    """Share of the time for which learners were held by the protocol."""
    longest_stop_s: float
    """Longest time in which no learner was in a step, from when all have begun."""
    staleness_steps: float
    """Steps between a snapshot and the adoption of what became of it, on average."""
    virtual_s: float
    bytes_up: int
    """Bodies of all offers."""
    bytes_down: int
    """Bodies of all publishes."""
    incarnations: int
    """Lives of all learners together."""
    digest: str
    """Of the bits of the final model."""
    wall_s: float
    cpu_s: float
    python: str = ""
    """Of the version whose standard library was the text, such as 3.11."""
    torch: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain values; `Row.of` makes them a row again."""
        return {**asdict(self), "key": self.cell.key, "version": VERSIONS[self.cell.task]}

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Row:
        """The row whose `to_json()` these are; where JSON has null, a number was not finite."""
        known = {one.name for one in fields(cls)}
        kept: dict[str, Any] = {
            name: math.nan if value is None else value for name, value in values.items() if name in known
        }
        curve = tuple((float(at), math.nan if loss is None else float(loss)) for at, loss in values["curve"])
        return cls(**{**kept, "cell": Cell.of(values["cell"]), "curve": curve})
