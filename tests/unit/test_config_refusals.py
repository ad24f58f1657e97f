"""Every wrong value is refused with what, so what, now what."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from atoll.config import DataConfig, NetworkConfig, OuterConfig, RunConfig, SyncConfig
from atoll.errors import ConfigError
from tests.unit.test_config import SECTIONS


def refusal(section: str, **values: Any) -> ConfigError:
    """The error of a section built with these values."""
    with pytest.raises(ConfigError) as caught:
        SECTIONS[section](**values)
    return caught.value


def test_quorum_above_learners_reads_as_the_style_guide_has_it():
    assert str(refusal("sync", min_quorum=5, num_learners=4)) == (
        "sync.min_quorum is 5 but the run has 4 learners.\n"
        "No round could reach quorum, so nothing would ever merge.\n"
        "Set sync.min_quorum to 4 or less, or add a learner."
    )


def test_more_fragments_than_steps_between_rounds_are_refused():
    assert str(refusal("sync", num_fragments=25)) == (
        "sync.num_fragments is 25 but sync.interval_steps is 24.\n"
        "Two fragments would fall due at the same step, and one of them would never have its turn.\n"
        "Set sync.num_fragments to 24 or less, or sync.interval_steps to 25 or more."
    )


def test_diloco_in_fragments_is_refused_and_told_what_to_set():
    assert str(refusal("sync", algorithm="diloco")) == (
        'sync.algorithm is "diloco" but sync.num_fragments is 24.\n'
        "DiLoCo merges the whole model at once, so the run would not be DiLoCo.\n"
        'Set sync.num_fragments to 1, or sync.algorithm to "streaming".'
    )


@pytest.mark.parametrize("alive_s", [1.0, 0.5])
def test_alive_must_outlast_the_heartbeat(alive_s: float):
    assert str(refusal("sync", alive_s=alive_s)) == (
        f"sync.alive_s is {alive_s} but sync.heartbeat_s is 1.0.\n"
        "A healthy learner would count as lost between two of its own heartbeats.\n"
        "Set sync.alive_s to several heartbeats, for example 5."
    )


WORDS = {
    ("sync", "algorithm"): ("decoupeld", "decoupled"),
    ("sync", "adopt"): ("rebased", "rebase"),
    ("sync", "merge_rule"): ("rdaa", "rda"),
    ("codec", "up"): ("bf-16", "bf16"),
    ("codec", "down"): ("fp32", "f32"),
    ("durability", "mode"): ("merges", "merge"),
    ("durability", "keep"): ("alll", "all"),
}


@pytest.mark.parametrize(("section", "key"), WORDS)
def test_an_unknown_word_is_refused_with_the_one_meant(section: str, key: str):
    wrong, right = WORDS[section, key]
    error = refusal(section, **{key: wrong})
    assert error.what.startswith(f'{section}.{key} is "{wrong}", which is none of ')
    assert error.so_what
    assert error.now_what.startswith(f'Did you mean "{right}"? Set {section}.{key} to one of ')


def test_data_parallel_is_refused_with_the_reason_and_a_baseline_instead():
    assert str(refusal("sync", algorithm="data-parallel")) == (
        'sync.algorithm is "data-parallel", which the runtime does not have.\n'
        "A learner that comes back would need weights and moments that no syncer holds.\n"
        'For a baseline that waits, set sync.algorithm to "streaming" or "diloco".'
    )


def test_certificates_of_learners_without_tls_are_refused():
    assert str(refusal("security", tls=False, mtls=True)) == (
        "security.mtls is true but security.tls is false.\n"
        "Certificates travel in TLS, so no learner could show one and none would be let in.\n"
        "Set security.tls to true, or security.mtls to false."
    )


@pytest.mark.parametrize(
    ("sync", "name", "needed"),
    [
        (SyncConfig(num_learners=9), "sync.num_learners", 9),
        (SyncConfig(min_quorum=10), "sync.min_quorum", 10),
    ],
)
def test_a_door_too_narrow_for_the_run_is_refused(sync: SyncConfig, name: str, needed: int):
    with pytest.raises(ConfigError) as caught:
        RunConfig(sync=sync, network=NetworkConfig(max_learners=8))
    assert str(caught.value) == (
        f"network.max_learners is 8 but {name} is {needed}.\n"
        "Learners that the run counts on would be refused at the door.\n"
        f"Set network.max_learners to {needed} or more, or lower {name}."
    )
    assert RunConfig(sync=sync, network=NetworkConfig(max_learners=needed))


def test_fewer_shards_than_learners_are_refused():
    with pytest.raises(ConfigError) as caught:
        RunConfig(sync=SyncConfig(num_learners=4), data=DataConfig(num_shards=3))
    assert str(caught.value) == (
        "data.num_shards is 3 but the run has 4 learners.\n"
        "Some learners would train on the same data, which would then weigh double.\n"
        "Set data.num_shards to 4 or more, or to 0 for one per learner."
    )


NAN, INF = math.nan, math.inf
OUT_OF_RANGE = [
    ("sync", "num_learners", 0, "at least 1"),
    ("sync", "num_learners", -4, "at least 1"),
    ("sync", "num_fragments", 0, "at least 1"),
    ("sync", "num_fragments", -1, "at least 1"),
    ("sync", "interval_steps", 0, "at least 1"),
    ("sync", "interval_steps", -24, "at least 1"),
    ("sync", "overlap_steps", 0, "at least 1"),
    ("sync", "overlap_steps", -2, "at least 1"),
    ("sync", "min_quorum", 0, "at least 1"),
    ("sync", "min_quorum", -1, "at least 1"),
    ("sync", "grace_fraction", -0.1, "at least 0 and below 1"),
    ("sync", "grace_fraction", 1.0, "at least 0 and below 1"),
    ("sync", "grace_max_steps", -1.0, "at least 0 and at most 8"),
    ("sync", "grace_max_steps", 9.0, "at least 0 and at most 8"),
    ("sync", "averaging", 0, "above 0 and at most 1"),
    ("sync", "averaging", 1.1, "above 0 and at most 1"),
    ("sync", "averaging", -0.2, "above 0 and at most 1"),
    ("sync", "blend_alpha", -0.5, "at least 0 and below 1"),
    ("sync", "blend_alpha", 1, "at least 0 and below 1"),
    ("guard", "norm_gate", -1.0, "0 or above 1"),
    ("guard", "norm_gate", 1.0, "0 or above 1"),
    ("guard", "max_step_tokens", -1, "at least 0"),
    ("sync", "heartbeat_s", 0, "at least 0.001"),
    ("sync", "heartbeat_s", -1, "at least 0.001"),
    ("sync", "alive_s", 0, "at least 0.001"),
    ("sync", "alive_s", -5, "at least 0.001"),
    ("sync", "retry_s", 0, "at least 0.001"),
    ("sync", "retry_s", -2, "at least 0.001"),
    ("sync", "live_s", 0, "at least 0.001"),
    ("sync", "live_s", -600, "at least 0.001"),
    ("outer", "learning_rate", 0, "above 0"),
    ("outer", "learning_rate", -0.4, "above 0"),
    ("outer", "momentum", -0.9, "at least 0 and below 1"),
    ("outer", "momentum", 1.0, "at least 0 and below 1"),
    ("outer", "momentum_warmup", -0.1, "at least 0 and at most 1"),
    ("outer", "momentum_warmup", 1.1, "at least 0 and at most 1"),
    ("outer", "momentum_cooldown", -0.2, "at least 0 and at most 1"),
    ("outer", "momentum_cooldown", 2, "at least 0 and at most 1"),
    ("budget", "ticks", -1, "at least 0"),
    ("budget", "tokens", -1, "at least 0"),
    ("budget", "drain_s", 0, "at least 0.001"),
    ("budget", "drain_s", -60, "at least 0.001"),
    ("durability", "snapshot_every", 0, "at least 1"),
    ("durability", "snapshot_every", -50, "at least 1"),
    ("guard", "max_share", -0.5, "above 0 and at most 1"),
    ("guard", "max_share", 1.1, "above 0 and at most 1"),
    ("guard", "strikes", -1, "at least 0"),
    ("guard", "quarantine_steps", -1, "at least 1"),
    ("heal", "max_age_steps", -1, "at least 0"),
    ("heal", "warmup_steps", -1, "at least 0"),
    ("heal", "save_every_steps", -1, "at least 0"),
    ("tape", "keep_mb", -1, "at least 1"),
    ("data", "hand_on_s", -1, "at least 0.001"),
    ("network", "data_connections", -1, "at least 1 and at most 16"),
    ("network", "data_connections", 0, "at least 1 and at most 16"),
    ("network", "data_connections", 17, "at least 1 and at most 16"),
    ("network", "piece_bytes", -1, "at least 4096 and at most 16777216"),
    ("network", "piece_bytes", 4095, "at least 4096 and at most 16777216"),
    ("network", "piece_bytes", (16 << 20) + 1, "at least 4096 and at most 16777216"),
    ("network", "spool_mb", -1, "at least 0"),
    ("network", "max_learners", -1, "at least 1"),
    ("network", "max_learners", 0, "at least 1"),
    ("data", "num_shards", -1, "at least 0"),
    ("data", "seed", -1, "at least 0 and at most 9223372036854775807"),
    ("data", "seed", 2**63, "at least 0 and at most 9223372036854775807"),
]


@pytest.mark.parametrize(("section", "key", "value", "wanted"), OUT_OF_RANGE)
def test_a_number_out_of_range_is_refused(section: str, key: str, value: float, wanted: str):
    error = refusal(section, **{key: value})
    assert error.what == f"{section}.{key} is {value!r}; it must be {wanted}."
    assert error.so_what.endswith(".")
    assert error.now_what.startswith(f"Set {section}.{key} to a value that is {wanted}, for example ")


def test_the_table_above_names_every_number_once_below_zero():
    numbers = {
        (section, f.name)
        for section, kind in SECTIONS.items()
        for f in dataclasses.fields(kind)
        if "int" in str(f.type) or "float" in str(f.type)
    }
    negative = {(section, key) for section, key, value, _ in OUT_OF_RANGE if value < 0}
    assert negative == numbers


FLOATS = sorted(
    (section, f.name)
    for section, kind in SECTIONS.items()
    for f in dataclasses.fields(kind)
    if f.type == "float"
)


@pytest.mark.parametrize("value", [NAN, INF, -INF, 10**400])
@pytest.mark.parametrize(("section", "key"), FLOATS)
def test_a_number_that_is_not_finite_is_refused(section: str, key: str, value: float):
    error = refusal(section, **{key: value})
    assert error.what == f"{section}.{key} is {value!r}; it must be finite."
    assert error.so_what == "Nothing could be computed from it."
    assert f"Set {section}.{key} to a value that is finite, for example " in error.now_what


WRONG_TYPES = [
    ("sync", "min_quorum", "2", "a whole number", "sync.min_quorum = 1"),
    ("sync", "min_quorum", 2.0, "a whole number", "sync.min_quorum = 1"),
    ("sync", "min_quorum", True, "a whole number", "sync.min_quorum = 1"),
    ("sync", "min_quorum", None, "a whole number", "sync.min_quorum = 1"),
    ("sync", "num_learners", "all", "a whole number", "sync.num_learners = 1"),
    ("sync", "grace_fraction", "0.8", "a number", "sync.grace_fraction = 0.8"),
    ("sync", "grace_fraction", False, "a number", "sync.grace_fraction = 0.8"),
    ("sync", "algorithm", 1, "a string", 'sync.algorithm = "decoupled"'),
    ("codec", "up", ["int4"], "a string", 'codec.up = "bf16"'),
    ("codec", "error_feedback", 1, "true or false", "codec.error_feedback = true"),
    ("codec", "error_feedback", "yes", "true or false", "codec.error_feedback = true"),
    ("security", "tls", 0, "true or false", "security.tls = true"),
    ("security", "mtls", "off", "true or false", "security.mtls = false"),
    ("network", "piece_bytes", "1MiB", "a whole number", "network.piece_bytes = 1048576"),
    ("data", "seed", 1.5, "a whole number", "data.seed = 0"),
    ("budget", "ticks", 1e6, "a whole number", "budget.ticks = 0"),
]


@pytest.mark.parametrize(("section", "key", "value", "wanted", "example"), WRONG_TYPES)
def test_a_wrong_type_is_refused(section: str, key: str, value: object, wanted: str, example: str):
    error = refusal(section, **{key: value})
    assert error.what.startswith(f"{section}.{key} is ")
    assert error.what.endswith(f", not {wanted}.")
    assert error.so_what == "Atoll does not guess what was meant, because a wrong guess would run for days."
    assert error.now_what == f"Write {wanted}, for example {example}."


@pytest.mark.parametrize("value", [3, {"min_quorum": 2}, OuterConfig()])
def test_a_section_of_the_wrong_kind_is_refused(value: Any):
    with pytest.raises(ConfigError) as caught:
        RunConfig(sync=value)
    assert caught.value.what == f"sync is {value!r}, not a section of settings."
    assert caught.value.so_what == (
        "Its settings could not be read, so the run would not be the one described."
    )
    assert "sync=atoll.config.SyncConfig(...)" in caught.value.now_what
