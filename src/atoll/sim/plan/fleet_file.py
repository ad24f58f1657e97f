"""A fleet as its owner writes it down: a model, islands with chips, prices and links, shocks, a syncer.

`keys.KEYS` lists every key with its meaning. Amounts are written as people write them ("12B", "1y",
"2.5Gbit/s"). A key that nobody knows, a value that cannot be meant and a model that does not fit are
refused here, so that whatever comes after works with a fleet that could exist.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from atoll.config import toml
from atoll.config.rules import did_you_mean
from atoll.errors import ConfigError
from atoll.sim.fleet.delay import Delay
from atoll.sim.fleet.model import Pauses, Shock, SyncerOutages
from atoll.sim.fleet.trace import CapacityTrace, read_traces
from atoll.sim.plan.keys import KEYS, REPEATED
from atoll.sim.plan.reader import NO_EFFECT, Reader
from atoll.sim.units import YEAR, read_count, read_duration, read_number, read_rate, say_count

__all__ = ["FleetSpec", "ModelSpec", "Site", "SyncerSpec", "parse_fleet", "read_fleet"]

MAX_ISLANDS = 256
MAX_CHIPS = 10**9
TOKENS_PER_PARAM = 20
FLOPS_PER_PARAM = 6
MOST_FLOPS = 10**21
"""Of one chip, and for one token of a model of as many parameters as can be counted."""

Table = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSpec:
    """What is trained."""

    params: int
    tokens: float
    """What lock-step would train on; the loss it reaches there is the goal."""
    batch: float
    """Tokens in one step of the whole fleet; kept when islands are left out, so that steps get longer."""
    bytes_per_param: float = 16.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """One island, or several of the same kind."""

    name: str
    chips: int
    tokens_per_s: float
    """Of one chip."""
    up_bits_per_s: float
    down_bits_per_s: float
    rtt_s: float = 0.0
    mtbi_s: float = YEAR
    slice_chips: int = 256
    pauses: Pauses = field(default_factory=Pauses)
    price: float = 0.0
    """Of one chip for one hour."""
    count: int = 1
    memory_gb: float | None = None
    trace: CapacityTrace | None = None

    @property
    def rate(self) -> float:
        """Tokens per second of one such island when nothing fails."""
        return self.chips * self.tokens_per_s

    @property
    def link_bits_per_s(self) -> float:
        """The thinner direction: every fragment travels both ways."""
        return min(self.up_bits_per_s, self.down_bits_per_s)

    @property
    def granted(self) -> float:
        """Share of its chips that the market grants, over the span of the trace; 1 without one."""
        if self.trace is None:
            return 1.0
        return min(1.0, self.trace.mean(max(self.trace.times_s[-1], 1.0)) / self.chips)

    @property
    def price_per_h(self) -> float:
        """Of one such island, for the chips that are granted."""
        return self.chips * self.granted * self.price


@dataclass(frozen=True, kw_only=True, slots=True)
class SyncerSpec:
    """Where the rounds are run."""

    bits_per_s: float | None = None
    price: float = 0.0
    outages: SyncerOutages | None = None

    @property
    def uptime(self) -> float:
        """Share of time in which it is there."""
        if self.outages is None:
            return 1.0
        return 1.0 / (1.0 + self.outages.down.mean_s / self.outages.every_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetSpec:
    """All that a plan needs to know."""

    model: ModelSpec
    sites: tuple[Site, ...]
    shocks: tuple[Shock, ...] = ()
    syncer: SyncerSpec = field(default_factory=SyncerSpec)

    @property
    def rate(self) -> float:
        """Tokens per second of all islands when nothing fails and nobody waits."""
        return sum(site.count * site.rate for site in self.sites)

    @property
    def has_prices(self) -> bool:
        """Whether money can be counted: every island has a price."""
        return all(site.price > 0 for site in self.sites)


def read_fleet(path: str | Path) -> FleetSpec:
    """The fleet of a file; traces are looked for beside it."""
    try:
        text = toml.read(path)
    except ConfigError as error:
        raise ConfigError(
            error.what.replace("config file", "fleet file"),
            "There is nothing to plan.",
            "Give the path of a readable TOML file; `atoll plan --example` prints one.",
        ) from error
    return parse_fleet(text, origin=str(path), folder=Path(path).parent)


def parse_fleet(text: str, *, origin: str = "the fleet", folder: Path = Path()) -> FleetSpec:
    """The fleet of a text; the first thing that is wrong is refused, with what to write instead."""
    try:
        tables = toml.parse(text, origin)
    except ConfigError as error:
        raise ConfigError(
            error.what,
            "None of it could be read, so there is nothing to plan.",
            'Mend that line. A table is [model] or [[island]], a key is chips = 128, an amount is "12B".',
        ) from error
    _refuse_unknown_tables(tables)
    if not tables.get("island"):
        raise ConfigError(
            f"{origin} has no islands.",
            "There is nobody to train and nothing to plan.",
            "Add a table [[island]] with name, chips, flops and up for each; "
            "`atoll plan --example` prints one.",
        )
    if "model" not in tables:
        raise ConfigError(
            f"{origin} has no [model].", "Nothing says what is trained.", "Add [model] with params and batch."
        )
    model = Reader("model", tables["model"], "model")
    params = model.need("params", read_count)
    flops = model.get("flops_per_token", read_count, FLOPS_PER_PARAM * params, most=MOST_FLOPS)
    islands = [Reader("island", table, f"island {n + 1}") for n, table in enumerate(tables["island"])]
    sites = tuple(_site(island, flops, folder) for island in islands)
    _refuse_clashes(sites)
    shocks = tuple(
        _shock(Reader("shock", table, f"shock {n + 1}")) for n, table in enumerate(tables.get("shock", []))
    )
    spec = FleetSpec(
        model=_model(model, params, sum(site.count * site.rate for site in sites)),
        sites=sites,
        shocks=shocks,
        syncer=_syncer(Reader("syncer", tables.get("syncer", {}), "syncer")),
    )
    for site in sites:
        _refuse_what_does_not_fit(spec.model, site)
    return spec


def _model(model: Reader, params: int, rate: float) -> ModelSpec:
    if model.has("step"):
        batch = model.need("step", read_duration) * rate
    else:
        batch = float(model.need("batch", read_count))
    if not batch >= 1:
        raise ConfigError(
            f"model: one step has {batch:.3g} tokens.",
            "A batch has at least one.",
            "Give a larger batch, or a longer step.",
        )
    tokens = float(model.get("tokens", read_count, TOKENS_PER_PARAM * params))
    if tokens < batch:
        raise ConfigError(
            f"model: {say_count(tokens)} tokens are less than one batch of {say_count(batch)}.",
            "The run would be over before its first step.",
            "Give more tokens, or a smaller batch.",
        )
    return ModelSpec(
        params=params,
        tokens=tokens,
        batch=batch,
        bytes_per_param=model.get("bytes_per_param", read_number, 16.0, above=True),
    )


def _site(island: Reader, flops_per_token: float, folder: Path) -> Site:
    name = island.word("name")
    if island.has("tokens_per_s"):
        tokens_per_s = island.need("tokens_per_s", read_number, above=True)
    else:
        tokens_per_s = island.need("flops", read_count, most=MOST_FLOPS) / flops_per_token
    up = island.need("up", read_rate)
    return Site(
        name=name,
        chips=island.need("chips", read_count),
        tokens_per_s=tokens_per_s,
        up_bits_per_s=up,
        down_bits_per_s=island.get("down", read_rate, up),
        rtt_s=island.get("rtt", read_duration, 0.0, zero=True),
        mtbi_s=island.get("mtbi", read_duration, YEAR),
        slice_chips=island.get("slice", read_count, 256),
        pauses=_pauses(island),
        price=island.get("price", read_number, 0.0),
        count=island.get("count", read_count, 1),
        memory_gb=island.need("memory_gb", read_number, above=True) if island.has("memory_gb") else None,
        trace=_trace(folder / island.word("trace"), name) if island.has("trace") else None,
    )


def _pauses(island: Reader) -> Pauses:
    elastic, usual = island.flag("elastic", True), Pauses()
    idle = ("outage",) if elastic else ("shrink", "grow", "returns")
    if given := next((key for key in idle if island.has(key)), None):
        raise ConfigError(
            f"{island.label} is {'' if elastic else 'not '}elastic and gives {given}.",
            NO_EFFECT,
            "An elastic island has shrink, grow and returns; one with elastic = false has outage.",
        )
    return Pauses(
        elastic=elastic,
        down_s=island.get("shrink", read_duration, usual.down_s, zero=True),
        up_s=island.get("grow", read_duration, usual.up_s, zero=True),
        returns=Delay(mean_s=island.get("returns", read_duration, usual.returns.mean_s, zero=True)),
        outage_s=island.get("outage", read_duration, usual.outage_s, zero=True),
    )


def _trace(path: Path, name: str) -> CapacityTrace:
    traces = read_traces(path)
    if name not in traces:
        raise ConfigError(
            f"{path} has no row for {name}.",
            "Nothing says how many chips the market grants that island.",
            f"Its learners are {', '.join(sorted(traces))}; the island's name must be one of them.",
        )
    if not any(traces[name].chips):
        raise ConfigError(
            f"{path} grants {name} no chip at any time.",
            "That island would never train.",
            "Mend the trace, or leave the island out.",
        )
    return traces[name]


def _shock(shock: Reader) -> Shock:
    return Shock(
        name=shock.word("name"),
        every_s=shock.need("every", read_duration),
        share=shock.need("share", read_number),
        returns=Delay(mean_s=shock.need("returns", read_duration, zero=True)),
        scope=shock.word("scope", "learner"),  # type: ignore[arg-type]  # Shock refuses other words itself
    )


def _syncer(syncer: Reader) -> SyncerSpec:
    outages = None
    if syncer.has("outage_every") or syncer.has("outage"):
        down = Delay(mean_s=syncer.need("outage", read_duration))
        outages = SyncerOutages(every_s=syncer.need("outage_every", read_duration), down=down)
    rate = syncer.need("rate", read_rate) if syncer.has("rate") else None
    return SyncerSpec(bits_per_s=rate, price=syncer.get("price", read_number, 0.0), outages=outages)


def _refuse_unknown_tables(tables: Table) -> None:
    for name, table in tables.items():
        if name not in KEYS:
            known = tuple(KEYS)
            now_what = f"{did_you_mean(name, known)}The tables are {', '.join(known)}."
            raise ConfigError(f"{name} is not a table of a fleet file.", NO_EFFECT, now_what)
        if name in REPEATED and not isinstance(table, list):
            raise ConfigError(
                f"{name} stands in single brackets.",
                "There may be several, so each needs its own.",
                f"Write [[{name}]].",
            )


def _refuse_clashes(sites: tuple[Site, ...]) -> None:
    names = [site.name for site in sites]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(
            f"Two islands are called {twice}.",
            "The answer could not say which one it means.",
            "Give each its own name, or write one of them with count = 2.",
        )
    if (total := sum(site.count for site in sites)) > MAX_ISLANDS:
        raise ConfigError(
            f"The fleet has {total} islands.",
            f"The planner compares up to {MAX_ISLANDS}, and quality at so many learners is not known.",
            "Describe fewer and larger islands.",
        )
    if (chips := sum(site.count * site.chips for site in sites)) > MAX_CHIPS:
        raise ConfigError(
            f"The fleet has {say_count(chips)} chips.",
            f"The planner counts up to {say_count(MAX_CHIPS)}.",
            "Lower chips or count of the islands.",
        )


def _refuse_what_does_not_fit(model: ModelSpec, site: Site) -> None:
    need = model.params * model.bytes_per_param / 1e9
    if site.memory_gb is not None and site.chips * site.memory_gb < need:
        raise ConfigError(
            f"The model does not fit on island {site.name}: {say_count(model.params)} parameters x "
            f"{model.bytes_per_param:g} bytes are {say_count(need)} GB, and {site.chips} chips x "
            f"{site.memory_gb:g} GB are {say_count(site.chips * site.memory_gb)} GB.",
            "A learner holds the whole model, its gradients and its optimizer within one island.",
            "Leave it out, give it more chips, or lower model.bytes_per_param if you offload.",
        )
