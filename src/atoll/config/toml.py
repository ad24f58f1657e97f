"""Between TOML and sections: text to tables, tables to sections, sections to text.

A name that nobody knows is refused rather than ignored, with the nearest known one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from atoll.config.rules import did_you_mean, toml_value
from atoll.config.sections import SECTIONS
from atoll.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["is_text", "parse", "read", "sections_of", "write"]

_NO_EFFECT = "It would have no effect, and the run would not be the one described."


def is_text(source: str) -> bool:
    """Whether a string is TOML itself and not the name of a file, as `RunConfig.from_toml` promises."""
    holds_setting = "=" in source and not source.endswith(".toml")
    return holds_setting or "\n" in source or not source.strip()


def read(path: str | os.PathLike[str]) -> str:
    """The text of a config file."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(
            f"The config file {os.fspath(path)} cannot be read: {reason}.",
            "The run has no settings to start from.",
            "Give the path of a readable TOML file, or leave it out for the defaults.",
        ) from error


def parse(text: str, origin: str) -> dict[str, Any]:
    """The tables of a TOML text; a refusal names where the text came from."""
    try:
        return tomllib.loads(text)
    except ValueError as error:
        raise ConfigError(
            f"{origin} is not valid TOML: {error}.",
            "None of its settings could be read, so the run has nothing to start from.",
            "Mend that line. A section is [sync], a setting is min_quorum = 2, a word stands in quotes.",
        ) from error


def sections_of(tables: Mapping[str, object]) -> dict[str, Any]:
    """The sections that nested tables describe; a table's name or a key that nobody knows is refused."""
    sections: dict[str, Any] = {}
    for name, table in tables.items():
        if name not in SECTIONS:
            raise _unknown_section(name)
        sections[name] = _section(name, table) if isinstance(table, Mapping) else table
    return sections


def write(sections: Mapping[str, Any]) -> str:
    """Every setting of these sections as TOML; one that is not set is left out: TOML has no null."""
    tables = []
    for name, section in sections.items():
        values = {f.name: getattr(section, f.name) for f in fields(section)}
        lines = [f"{key} = {toml_value(value)}" for key, value in values.items() if value is not None]
        tables.append("\n".join([f"[{name}]", *lines]) + "\n")
    return "\n".join(tables)


def _section(name: str, table: Mapping[str, object]) -> Any:
    known = _settings(name)
    for key in table:
        if key not in known:
            now_what = f"{did_you_mean(key, known)}The settings of [{name}] are {', '.join(known)}."
            raise ConfigError(f"{name}.{key} is not a setting.", _NO_EFFECT, now_what)
    return SECTIONS[name](**table)


def _unknown_section(name: str) -> ConfigError:
    home = next((section for section in SECTIONS if name in _settings(section)), None)
    if home:
        return ConfigError(f"{name} stands outside its section.", _NO_EFFECT, f"Move it below [{home}].")
    now_what = f"{did_you_mean(name, tuple(SECTIONS))}The sections are {', '.join(SECTIONS)}."
    return ConfigError(f"{name} is not a section of a run's config.", _NO_EFFECT, now_what)


def _settings(section: str) -> list[str]:
    return [f.name for f in fields(SECTIONS[section])]
