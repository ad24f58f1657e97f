"""What costs most, and what would help: tried, not guessed.

Changes that an operator could make (twice the learners, half a pause, slices back sooner, elastic
learners) are simulated on the same luck, for a short time, and the two that gain most are named with what
they gain.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from atoll.cli.goodput_study import Row, Study
from atoll.sim.fleet.model import MAX_LEARNERS
from atoll.sim.fleet.result import FleetResult
from atoll.sim.units import DAY, say_count

__all__ = ["SHARE_WORDS", "advice"]

SHARE_WORDS = {
    "away": "chips that are away",
    "shrinking": "standing still to shrink",
    "growing": "standing still to grow",
    "restarting": "restarts of whole learners",
    "redone": "work done again since a checkpoint",
    "waiting": "waiting for slower chips",
}
TRY_S = DAY
TRY_REPETITIONS = 8
LEAST_GAIN = 0.0005
NUM_NAMED = 2
FEWEST_SHOCKS = 10


def advice(study: Study, results: Sequence[FleetResult]) -> list[str]:
    """Sentences about the largest fleet: its worst row, its best row, and what would help that one."""
    largest = max(row.chips for row in study.rows)
    pairs = [pair for pair in zip(study.rows, results, strict=True) if pair[0].chips == largest]
    worst_row, worst = min(pairs, key=lambda pair: pair[1].goodput)
    best_row, best = max(pairs, key=lambda pair: pair[1].goodput)
    said = [f"{say_count(largest)} chips, {_name(worst_row)}: {_loss(worst)}."]
    if best_row != worst_row:
        said.append(f"The same chips, {_name(best_row)}: {_loss(best)}.")
    return [*said, _help(study, best_row), *_too_rare(study)]


def _too_rare(study: Study) -> Iterator[str]:
    """What hardly happened, so that the answer depends on luck."""
    learners = max(row.learners for row in study.rows)
    for shock in study.shocks:
        times = study.horizon_s * study.repetitions / shock.every_s
        times *= learners if shock.scope == "learner" else 1
        if times < FEWEST_SHOCKS:
            yield (
                f"Shock {shock.name} comes about {times:.2g} times in all repetitions together, too few "
                "to tell what it costs: give more --days or --repetitions."
            )


def _name(row: Row) -> str:
    learners = "one learner" if row.learners == 1 else f"{row.learners} learners"
    return learners if row.elastic else f"{learners}, not elastic"


def _loss(result: FleetResult) -> str:
    name = max(SHARE_WORDS, key=lambda share: result.shares[share])
    lost = 1 - result.goodput
    if lost < LEAST_GAIN:
        return "hardly any time is lost"
    return f"{lost:.1%} of the chip time is lost, most to {SHARE_WORDS[name]} ({result.shares[name]:.1%})"


def _help(study: Study, row: Row) -> str:
    from atoll.sim.fleet.simulate import simulate

    changes = list(_changes(study, row))
    fleets = [study.fleet(row), *(changed.fleet(other) for _, changed, other in changes)]
    # Shocks are rare: a short time would not meet any.
    horizon_s = study.horizon_s if study.shocks or study.traces else min(TRY_S, study.horizon_s)
    tried = simulate(fleets, horizon_s=horizon_s, repetitions=TRY_REPETITIONS, seed=study.seed)
    now = tried[0].goodput
    gains = sorted(
        ((one.goodput - now, words) for one, (words, _, _) in zip(tried[1:], changes, strict=True)),
        reverse=True,
    )
    named = [f"{words} ({100 * gain:+.1f} points)" for gain, words in gains[:NUM_NAMED] if gain > LEAST_GAIN]
    return f"What would help most there: {', '.join(named)}." if named else "Nothing simple would help there."


def _changes(study: Study, row: Row) -> Iterator[tuple[str, Study, Row]]:
    """What could be changed: in words, as another study, and for which row."""
    pauses = study.pauses
    if 2 * row.learners <= min(MAX_LEARNERS, row.chips) and not study.traces:
        yield "twice the learners", study, replace(row, learners=2 * row.learners)
    if row.elastic:
        yield (
            "half the pause to shrink",
            replace(study, pauses=replace(pauses, down_s=pauses.down_s / 2)),
            row,
        )
        yield "half the pause to grow", replace(study, pauses=replace(pauses, up_s=pauses.up_s / 2)), row
        sooner = replace(pauses.returns, mean_s=pauses.returns.mean_s / 2)
        yield "slices back in half the time", replace(study, pauses=replace(pauses, returns=sooner)), row
    else:
        yield "elastic learners", study, replace(row, elastic=True)
        yield "half the outage", replace(study, pauses=replace(pauses, outage_s=pauses.outage_s / 2)), row
        if pauses.checkpoint_s:
            often = replace(pauses, checkpoint_s=pauses.checkpoint_s / 2)
            yield "checkpoints twice as often", replace(study, pauses=often), row
    for number, shock in enumerate(study.shocks):
        rest = study.shocks[:number] + study.shocks[number + 1 :]
        yield f"no {shock.name} shocks", replace(study, shocks=rest), row
