"""TOML and tables: whatever is written reads back, and whatever nobody knows is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import MappingProxyType

import pytest

from atoll.config import RunConfig, SyncConfig
from atoll.errors import ConfigError
from tests.unit.test_config import EVERYTHING, SECTIONS


def toml_refusal(source: str | Path) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        RunConfig.from_toml(source)
    return caught.value


@pytest.mark.parametrize("config", [RunConfig(), EVERYTHING], ids=["defaults", "everything"])
def test_toml_reads_back_to_the_same_config(config: RunConfig):
    assert RunConfig.from_toml(config.to_toml()) == config
    assert RunConfig.from_toml(config.to_toml()).to_toml() == config.to_toml()


@pytest.mark.parametrize("section", SECTIONS)
def test_a_section_alone_reads_back_and_leaves_the_others_at_their_defaults(section: str):
    changed = getattr(EVERYTHING, section)
    values = {f.name: getattr(changed, f.name) for f in dataclasses.fields(changed)}
    same = [f.name for f in dataclasses.fields(changed) if values[f.name] == f.default]
    assert same == (["tls"] if section == "security" else []), "a setting at its default proves nothing"
    config = RunConfig(**{section: changed})
    assert RunConfig.from_toml(config.to_toml()) == config
    assert RunConfig.from_tables({section: values}) == config


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
        "The settings of [outer] are learning_rate, momentum, momentum_warmup, momentum_cooldown."
    )


def test_an_unknown_section_is_refused_with_the_one_meant():
    error = toml_refusal("[codecs]\nup = 'int4'\n")
    assert error.what == "codecs is not a section of a run's config."
    assert error.so_what == "It would have no effect, and the run would not be the one described."
    assert error.now_what == (
        "Did you mean codec? "
        "The sections are sync, outer, codec, budget, durability, guard, heal, tape, security, network, data."
    )


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


def test_insecure_mode_reads_back():
    config = RunConfig.from_toml("security.tls = false")
    assert not config.security.tls
    assert RunConfig.from_toml(config.to_toml()) == config


# Tables


def test_tables_may_be_any_mapping_and_may_leave_a_setting_open():
    tables = MappingProxyType({"sync": MappingProxyType({"min_quorum": 3, "num_learners": None})})
    assert RunConfig.from_tables(tables) == RunConfig(sync=SyncConfig(min_quorum=3))
    assert RunConfig.from_tables({}) == RunConfig()


@pytest.mark.parametrize(
    ("tables", "what"),
    [
        ({"sync": {"quorum": 2}}, "sync.quorum is not a setting."),
        ({"sink": {}}, "sink is not a section of a run's config."),
        (
            {"network": {"piece_bytes": 0}},
            "network.piece_bytes is 0; it must be at least 4096 and at most 16777216.",
        ),
        ({"data": 7}, "data is 7, not a section of settings."),
    ],
)
def test_tables_meet_the_same_rules(tables: dict[str, object], what: str):
    with pytest.raises(ConfigError) as caught:
        RunConfig.from_tables(tables)
    assert caught.value.what == what
