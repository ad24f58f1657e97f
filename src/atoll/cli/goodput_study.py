"""From what was asked to what is simulated: rows of fleets, with every refusal on the way.

`read_study` gets the options that were given, by name, still as text. It reads each amount, refuses what
makes no sense together, and returns a `Study`: plain values, from which every fleet can be built.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from atoll.cli.goodput_shocks import read_shocks
from atoll.errors import ConfigError
from atoll.sim.fleet.delay import Delay
from atoll.sim.fleet.model import MAX_LEARNERS, Fleet, Pauses, Shock, SyncerOutages, even_fleet
from atoll.sim.fleet.presets import Cell, cells_of
from atoll.sim.fleet.trace import CapacityTrace, read_traces
from atoll.sim.units import DAY, read_count, read_counts, read_duration, read_number, say_count

__all__ = ["Row", "Study", "check_meant", "read_study"]

CHIPS = "150k,1.2M"
LEARNERS = "1,2,4,8,16"
DAYS = 7.0
TABLE_DAYS = 1.0
REPETITIONS = 8
"""Seconds of computing instead of minutes, and errors well below a point. Tables have many cells."""
MOST_REPETITIONS = 100_000
MOST_SEED = 2**63 - 1
MOST_MONEY = 1e6
"""For an hour of one chip, in any currency."""
MOST_DAYS = 1e6
SYNCER_DOWN = "1min"
ELASTICITY = {"elastic": (True,), "none": (False,), "both": (False, True)}

_PAUSE_OPTIONS = {
    "step": "quantum_s",
    "down": "down_s",
    "up": "up_s",
    "outage": "outage_s",
    "reload": "reload_s",
    "checkpoint": "checkpoint_s",
}
_SHAPE = ("chips", "learners", "elastic", "elasticity", "quorum", "speed_spread")
_WORLD = ("traces", "shocks", "syncer_mtbf", "syncer_down")
_CONSTANTS = ("step", "down", "up", "return_mean", "outage")
_OF_ELASTIC = ("down", "up", "return_mean", "return_shape", "return_power")
_OF_RIGID = ("outage", "reload", "checkpoint")
_ONE_FLEET = ("timeline", "write_traces")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the answer."""

    chips: int
    learners: int
    elastic: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Study:
    """Everything that decides the answer."""

    rows: tuple[Row, ...]
    cells: tuple[Cell, ...] = ()
    """What others found for the same rows; empty: nobody did."""
    mtbi_s: float
    slice_chips: int
    pauses: Pauses
    speed_spread: float
    quorum: int
    shocks: tuple[Shock, ...] = ()
    traces: Mapping[str, CapacityTrace] = field(default_factory=dict)
    syncer: SyncerOutages | None = None
    horizon_s: float
    repetitions: int
    seed: int
    price: float | None = None

    def fleet(self, row: Row) -> Fleet:
        """The fleet of one row."""
        fleet = even_fleet(
            row.chips,
            row.learners,
            mtbi_s=self.mtbi_s,
            slice_chips=self.slice_chips,
            pauses=replace(self.pauses, elastic=row.elastic),
            speed_spread=self.speed_spread,
            quorum=self.quorum,
            shocks=self.shocks,
            syncer=self.syncer,
        )
        if not self.traces:
            return fleet
        _check_traces(self.traces, fleet)
        islands = (replace(island, trace=self.traces.get(island.name)) for island in fleet.islands)
        return replace(fleet, islands=tuple(islands))

    def settings(self) -> dict[str, object]:
        """What was simulated, for JSON: plain values in seconds and shares."""
        pauses = {
            name.name: getattr(self.pauses, name.name)
            for name in fields(Pauses)
            if name.name not in ("elastic", "returns")
        }
        returns = self.pauses.returns
        return {
            "mtbi_s": self.mtbi_s,
            "slice_chips": self.slice_chips,
            **pauses,
            "return_s": returns.mean_s,
            "return_shape": returns.shape,
            "return_power": returns.power,
            "speed_spread": self.speed_spread,
            "quorum": self.quorum,
            "shocks": [_shock_settings(shock) for shock in self.shocks],
            "traces": sorted(self.traces),
            "syncer": None
            if self.syncer is None
            else {"every_s": self.syncer.every_s, "down_s": self.syncer.down.mean_s},
            "days": self.horizon_s / DAY,
            "repetitions": self.repetitions,
            "seed": self.seed,
        }


def check_meant(given: Mapping[str, Any]) -> None:
    """Refuse a constant of learners that the study does not have: it would have no effect."""
    if "preset" in given or "fit" in given:
        return
    kinds = _elasticity(given)
    for elastic, options, kind in ((True, _OF_ELASTIC, "elastic"), (False, _OF_RIGID, "not elastic")):
        idle = " and ".join(_flag(option) for option in options if option in given)
        if idle and elastic not in kinds:
            raise ConfigError(
                f"{idle} given, and {'no learner is' if elastic else 'all learners are'} elastic.",
                f"That is about learners that are {kind}, so it would have no effect.",
                f"Leave it out, or add {'--elastic' if elastic else '--no-elastic'} or --elasticity both.",
            )


def read_study(given: Mapping[str, Any]) -> Study:
    """The study that was asked for; nonsense and contradictions are refused with a sentence."""
    _check_together(given)
    cells = _cells(given)
    rows = _rows(given, cells)
    usual_days = TABLE_DAYS if cells else DAYS
    study = Study(
        rows=rows,
        cells=cells,
        mtbi_s=read_duration(given.get("mtbi", "1y"), "--mtbi"),
        slice_chips=read_count(given.get("slice_chips", "256"), "--slice-chips"),
        pauses=_pauses(given),
        speed_spread=read_number(given.get("speed_spread", "0"), "--speed-spread"),
        quorum=read_count(given.get("quorum", 1), "--quorum"),
        shocks=read_shocks(given.get("shocks", ())),
        traces=read_traces(given["traces"]) if "traces" in given else {},
        syncer=_syncer(given),
        horizon_s=DAY * read_number(given.get("days", usual_days), "--days", above=True, most=MOST_DAYS),
        repetitions=_repetitions(given),
        seed=read_count(given["seed"], "--seed", least=0, most=MOST_SEED),
        price=read_number(given["price"], "--price", most=MOST_MONEY) if "price" in given else None,
    )
    for row in rows:
        study.fleet(row)
    return study


def _cells(given: Mapping[str, Any]) -> tuple[Cell, ...]:
    if "fit" in given:
        from atoll.sim.fleet.fit import read_table

        return read_table(given["fit"])
    return cells_of(given["preset"]) if "preset" in given else ()


def _rows(given: Mapping[str, Any], cells: Sequence[Cell]) -> tuple[Row, ...]:
    if cells:
        return tuple(Row(cell.chips, cell.learners, cell.elastic) for cell in cells)
    chips = read_counts(given.get("chips", CHIPS), "--chips")
    learners = read_counts(given.get("learners", LEARNERS), "--learners", most=MAX_LEARNERS)
    rows = tuple(Row(n, m, elastic) for n in chips for elastic in _elasticity(given) for m in learners)
    for name in _ONE_FLEET:
        if name in given and len(rows) > 1:
            raise ConfigError(
                f"{_flag(name)} shows one fleet, and {len(rows)} were asked for.",
                "They would run into each other.",
                f"Name one: --chips {say_count(rows[-1].chips)} --learners {rows[-1].learners}.",
            )
    return rows


def _elasticity(given: Mapping[str, Any]) -> tuple[bool, ...]:
    if "elastic" in given:
        return (bool(given["elastic"]),)
    word = given.get("elasticity", "elastic")
    if word not in ELASTICITY:
        raise ConfigError(
            f"--elasticity is {word!r}.",
            "It says what a learner does that loses a slice.",
            "Use elastic, none or both.",
        )
    return ELASTICITY[word]


def _pauses(given: Mapping[str, Any]) -> Pauses:
    """The defaults of the model, but for what was given."""
    seconds: dict[str, Any] = {
        field_name: read_duration(given[option], _flag(option), zero=True)
        for option, field_name in _PAUSE_OPTIONS.items()
        if option in given
    }
    pauses = replace(Pauses(), **seconds)
    returns = Delay(
        mean_s=read_duration(given["return_mean"], "--return", zero=True)
        if "return_mean" in given
        else pauses.returns.mean_s,
        shape=read_number(given.get("return_shape", pauses.returns.shape), "--return-shape"),
        power=read_number(given.get("return_power", pauses.returns.power), "--return-power"),
    )
    return replace(pauses, returns=returns)


def _syncer(given: Mapping[str, Any]) -> SyncerOutages | None:
    if "syncer_mtbf" not in given:
        if "syncer_down" in given:
            raise ConfigError(
                "--syncer-down was given without --syncer-mtbf.",
                "It is not known how often the syncer is away.",
                "Add for example --syncer-mtbf 7d.",
            )
        return None
    down = Delay(mean_s=read_duration(given.get("syncer_down", SYNCER_DOWN), "--syncer-down", zero=True))
    return SyncerOutages(every_s=read_duration(given["syncer_mtbf"], "--syncer-mtbf"), down=down)


def _repetitions(given: Mapping[str, Any]) -> int:
    asked = read_count(given.get("repetitions", REPETITIONS), "--repetitions")
    if asked > MOST_REPETITIONS:
        raise ConfigError(
            f"--repetitions is {asked}.",
            "The standard error falls with the square root only, and memory would not hold them.",
            f"Give at most {MOST_REPETITIONS:,}.",
        )
    return asked


def _check_together(given: Mapping[str, Any]) -> None:
    """Refuse options of which one takes the other's meaning away."""
    _refuse_pair(
        given, "preset", (*_SHAPE, *_WORLD, *_ONE_FLEET, "mtbi"), "The preset says which fleets it is about."
    )
    _refuse_pair(
        given,
        "fit",
        (*_SHAPE, *_WORLD, *_ONE_FLEET, "reload", "checkpoint"),
        "The table says which fleets it is about.",
    )
    _refuse_pair(given, "fit", _CONSTANTS, "That is what a fit finds out.")
    _refuse_pair(
        given,
        "fit",
        ("preset", "from_run", "price"),
        "A fit compares with the measurements in its table only.",
    )
    _refuse_pair(given, "preset", ("from_run",), "The paper's fleet is not the one of that run.")
    _refuse_pair(given, "elastic", ("elasticity",), "Both say what a learner does that loses a slice.")


def _refuse_pair(given: Mapping[str, Any], one: str, others: Sequence[str], why: str) -> None:
    clash = next((other for other in others if one in given and other in given), None)
    if clash is not None:
        raise ConfigError(f"{_flag(one)} and {_flag(clash)} were given.", why, "Leave one of them out.")


def _flag(name: str) -> str:
    """As it is written on the command line."""
    return {"shocks": "--shock", "return_mean": "--return"}.get(name, "--" + name.replace("_", "-"))


def _check_traces(traces: Mapping[str, CapacityTrace], fleet: Fleet) -> None:
    chips = {island.name: island.chips for island in fleet.islands}
    for name, trace in traces.items():
        if name not in chips:
            raise ConfigError(
                f"--traces speaks of {name!r}.",
                f"A fleet of {len(chips)} learners has no learner of that name.",
                f"Its names are learner-0 to learner-{len(chips) - 1}.",
            )
        if max(trace.chips) > chips[name]:
            raise ConfigError(
                f"--traces grants {max(trace.chips):g} chips to {name}, which has {chips[name]}.",
                "What it would do with the others is not known.",
                "Give more --chips, or grant fewer.",
            )


def _shock_settings(shock: Shock) -> dict[str, object]:
    return {
        "name": shock.name,
        "every_s": shock.every_s,
        "share": shock.share,
        "down_s": shock.returns.mean_s,
        "scope": shock.scope,
    }
