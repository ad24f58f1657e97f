"""Every default works, every wrong value is refused with what, so what, now what."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import math
from pathlib import Path
from typing import Any

import pytest

import atoll.config
from atoll.config import (
    CODECS,
    BudgetConfig,
    CodecConfig,
    DurabilityConfig,
    OuterConfig,
    RunConfig,
    SyncConfig,
)
from atoll.core.params import SECOND, RunParams
from atoll.errors import ConfigError

SECTIONS: dict[str, type[Any]] = {
    "sync": SyncConfig,
    "outer": OuterConfig,
    "codec": CodecConfig,
    "budget": BudgetConfig,
    "durability": DurabilityConfig,
}

EVERYTHING = RunConfig(
    sync=SyncConfig(
        algorithm="streaming",
        num_learners=8,
        num_fragments=6,
        interval_steps=30,
        overlap_steps=3,
        min_quorum=2,
        grace_fraction=0.0,
        averaging=1.0,
        adopt="blend",
        blend_alpha=0.1,
        merge_rule="mean",
        norm_gate=0.0,
        max_step_tokens=1 << 20,
        heartbeat_s=0.1,
        alive_s=1 / 3,
        retry_s=1e-3,
        live_s=1e9,
    ),
    outer=OuterConfig(learning_rate=1e-7, momentum=0.0),
    codec=CodecConfig(up="int4", down="f32", error_feedback=False),
    budget=BudgetConfig(ticks=10, tokens=10**15, drain_s=2.5),
    durability=DurabilityConfig(mode="snapshot", snapshot_every=1, keep="all"),
)


def refusal(section: str, **values: Any) -> ConfigError:
    """The error of a section built with these values."""
    with pytest.raises(ConfigError) as caught:
        SECTIONS[section](**values)
    return caught.value


def toml_refusal(source: str | Path) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        RunConfig.from_toml(source)
    return caught.value


# Defaults and what becomes of them


def test_the_default_config_fills_the_default_params():
    assert RunConfig().params() == RunParams()


def test_every_setting_of_the_protocol_reaches_the_params():
    params = EVERYTHING.params((5,) * 6, publish_bytes=(6,) * 6, full_bytes=(7,) * 6)
    assert params == RunParams(
        algorithm="streaming",
        num_fragments=6,
        interval_steps=30,
        overlap_steps=3,
        min_quorum=2,
        grace_fraction=0.0,
        averaging=1.0,
        adopt="blend",
        durability="snapshot",
        snapshot_every=1,
        budget_ticks=10,
        budget_tokens=10**15,
        fragment_bytes=(5,) * 6,
        publish_bytes=(6,) * 6,
        full_bytes=(7,) * 6,
        norm_gate=0.0,
        max_step_tokens=1 << 20,
        heartbeat_ns=SECOND // 10,
        alive_ns=333_333_333,
        retry_ns=1_000_000,
        drain_ns=5 * SECOND // 2,
        live_ns=10**9 * SECOND,
    )
    untouched = [
        f.name
        for f in dataclasses.fields(RunParams)
        if getattr(params, f.name) == getattr(RunParams(), f.name)
    ]
    assert untouched == [], "the config above must change every parameter, or this test proves nothing"


@pytest.mark.parametrize("sizes", ["fragment_bytes", "publish_bytes", "full_bytes"])
def test_params_refuse_a_model_with_another_number_of_fragments(sizes: str):
    with pytest.raises(ConfigError) as caught:
        RunConfig().params(**{sizes: (1, 2, 3)})
    assert str(caught.value) == (
        "The model has 3 fragments but sync.num_fragments is 24.\n"
        "Rounds would open on fragments that do not exist, or leave some out.\n"
        "Set sync.num_fragments to 3, or partition the model again."
    )


def test_a_config_is_frozen_and_keyword_only():
    with pytest.raises(dataclasses.FrozenInstanceError):
        RunConfig().sync.min_quorum = 2  # type: ignore[misc]  # the point of the test
    with pytest.raises(TypeError):
        SyncConfig("decoupled")  # type: ignore[call-arg]  # the point of the test


def test_every_field_has_a_docstring_below_it():
    tree = ast.parse(inspect.getsource(atoll.config))
    bare = []
    for node in tree.body:
        if not (isinstance(node, ast.ClassDef) and node.name.endswith("Config")):
            continue
        for statement, below in zip(node.body, [*node.body[1:], None], strict=True):
            documented = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
            if isinstance(statement, ast.AnnAssign) and not documented:
                bare.append(f"{node.name}.{ast.unparse(statement.target)}")
    assert bare == []


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_goes_both_ways(codec: Any):
    assert CodecConfig(up=codec, down=codec).up == codec


def test_diloco_works_with_one_fragment_and_otherwise_defaults():
    assert RunConfig(sync=SyncConfig(algorithm="diloco", num_fragments=1)).params().waits


def test_a_whole_number_stands_for_a_float():
    sync = SyncConfig(heartbeat_s=2, norm_gate=0)
    assert (sync.heartbeat_s, sync.norm_gate) == (2.0, 0.0)
    assert isinstance(sync.heartbeat_s, float)


# Refusals


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


def test_data_parallel_is_not_among_the_algorithms_of_the_rounds():
    error = refusal("sync", algorithm="data-parallel")
    assert error.what == (
        'sync.algorithm is "data-parallel", which is none of "decoupled", "streaming", "diloco".'
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
    ("sync", "averaging", 0, "above 0 and at most 1"),
    ("sync", "averaging", 1.1, "above 0 and at most 1"),
    ("sync", "averaging", -0.2, "above 0 and at most 1"),
    ("sync", "blend_alpha", -0.5, "at least 0 and below 1"),
    ("sync", "blend_alpha", 1, "at least 0 and below 1"),
    ("sync", "norm_gate", -1.0, "0 or above 1"),
    ("sync", "norm_gate", 1.0, "0 or above 1"),
    ("sync", "max_step_tokens", -1, "at least 0"),
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
    ("budget", "ticks", -1, "at least 0"),
    ("budget", "tokens", -1, "at least 0"),
    ("budget", "drain_s", 0, "at least 0.001"),
    ("budget", "drain_s", -60, "at least 0.001"),
    ("durability", "snapshot_every", 0, "at least 1"),
    ("durability", "snapshot_every", -50, "at least 1"),
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


# TOML


@pytest.mark.parametrize("config", [RunConfig(), EVERYTHING], ids=["defaults", "everything"])
def test_toml_reads_back_to_the_same_config(config: RunConfig):
    assert RunConfig.from_toml(config.to_toml()) == config
    assert RunConfig.from_toml(config.to_toml()).to_toml() == config.to_toml()


def test_toml_holds_every_setting_but_the_open_number_of_learners():
    written = RunConfig().to_toml()
    assert [line for line in written.splitlines() if line.startswith("[")] == [
        f"[{name}]" for name in SECTIONS
    ]
    assert "num_learners" not in written
    assert "num_learners = 8\n" in EVERYTHING.to_toml()


@pytest.mark.parametrize("text", ["", "  ", "\n", "# nothing\n", "[sync]\n"])
def test_empty_toml_is_the_default_run(text: str):
    assert RunConfig.from_toml(text) == RunConfig()


def test_one_line_of_toml_is_text_and_not_a_path():
    assert RunConfig.from_toml("sync.min_quorum = 3").sync.min_quorum == 3


def test_a_file_is_read_by_path_and_by_name(tmp_path: Path):
    folder = tmp_path / "eta=0.4"
    folder.mkdir()
    file = folder / "run.toml"
    file.write_text(EVERYTHING.to_toml(), encoding="utf-8")
    assert RunConfig.from_toml(file) == EVERYTHING
    assert RunConfig.from_toml(str(file)) == EVERYTHING


def test_a_refusal_from_a_file_names_the_file(tmp_path: Path):
    file = tmp_path / "run.toml"
    file.write_text("[sync]\nmin_quorum = 5\nnum_learners = 1\n", encoding="utf-8")
    assert str(toml_refusal(file)) == (
        f"{file}: sync.min_quorum is 5 but the run has 1 learner.\n"
        "No round could reach quorum, so nothing would ever merge.\n"
        "Set sync.min_quorum to 1 or less, or add a learner."
    )


def test_an_unreadable_file_is_refused(tmp_path: Path):
    missing, binary = tmp_path / "missing.toml", tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    for file, reason in [
        (missing, "No such file or directory"),
        (tmp_path, "Is a directory"),
        (binary, "it is not UTF-8 text"),
    ]:
        error = toml_refusal(file)
        assert error.what == f"The config file {file} cannot be read: {reason}."
        assert error.so_what == "The run has no settings to start from."
        assert error.now_what == "Give the path of a readable TOML file, or leave it out for the defaults."


@pytest.mark.parametrize(
    "text", ["[sync\n", "sync.adopt = rebase", "[sync]\nmin_quorum = 1\nmin_quorum = 2\n"]
)
def test_invalid_toml_is_refused_with_its_place(text: str, tmp_path: Path):
    error = toml_refusal(text)
    assert error.what.startswith("The config text is not valid TOML: ")
    assert "line" in error.what
    assert error.so_what.startswith("None of its settings could be read")
    assert error.now_what.startswith("Mend that line.")
    file = tmp_path / "run.toml"
    file.write_text(text, encoding="utf-8")
    assert toml_refusal(file).what.startswith(f"{file} is not valid TOML: ")


def test_an_unknown_setting_is_refused_with_the_one_meant():
    error = toml_refusal("[sync]\nmin_quorom = 2\n")
    assert error.what == "sync.min_quorom is not a setting."
    assert error.so_what == "It would have no effect, and the run would not be the one described."
    assert error.now_what.startswith("Did you mean min_quorum? The settings of [sync] are algorithm, ")


def test_an_unknown_setting_that_resembles_none_lists_them():
    assert toml_refusal("[outer]\nzzz = 2\n").now_what == (
        "The settings of [outer] are learning_rate, momentum."
    )


def test_an_unknown_section_is_refused_with_the_one_meant():
    error = toml_refusal("[codecs]\nup = 'int4'\n")
    assert error.what == "codecs is not a section of a run's config."
    assert error.so_what == "It would have no effect, and the run would not be the one described."
    assert error.now_what == ("Did you mean codec? The sections are sync, outer, codec, budget, durability.")


def test_a_setting_outside_its_section_is_sent_home():
    error = toml_refusal("min_quorum = 2")
    assert error.what == "min_quorum stands outside its section."
    assert error.now_what == "Move it below [sync]."


def test_a_value_where_a_section_belongs_is_refused():
    error = toml_refusal("sync = 3")
    assert error.what == "sync is 3, not a section of settings."
    assert error.now_what.startswith("Write [sync] and the settings below it in TOML")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('[sync]\nmin_quorum = "2"\n', 'sync.min_quorum is "2", not a whole number.'),
        ("[sync]\ngrace_fraction = nan\n", "sync.grace_fraction is nan; it must be finite."),
        ("[sync]\ngrace_fraction = true\n", "sync.grace_fraction is true, not a number."),
        ("[codec]\nup = 4\n", "codec.up is 4, not a string."),
        ("[budget]\nticks = -1\ntokens = -1\n", "budget.ticks is -1; it must be at least 0."),
    ],
)
def test_toml_values_meet_the_same_rules(text: str, what: str):
    assert toml_refusal(text).what == what


def test_no_finite_wait_is_too_long_for_nanoseconds():
    assert RunConfig(sync=SyncConfig(live_s=1e308)).params().live_ns > 10**316
