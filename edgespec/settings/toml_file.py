"""TOML files of settings."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from edgespec.errors import UsageError
from edgespec.files.regular import read_regular
from edgespec.settings.base import expanded, key_of, nearest
from edgespec.settings.config import GenerateSettings, LoadSettings, ServerSettings
from edgespec.settings.parsing import SELF

MAX_CONFIG_BYTES = 1 << 20
NO_SETTING = (
    ": keys are settings of models, texts and the server, other flags such as --prompt stand on "
    "the command line"
)
"""Advice about a key that resembles none."""


def read_config(path: Path) -> dict[str, Any]:
    """Settings of a TOML file, by their Python names.

    A key is a setting's name or its long flag's, with `-` or `_`; all are at the top level. Paths
    are relative to the file. Raises UsageError for what is no TOML and for unknown keys.
    """
    try:
        content = tomllib.loads(read_regular(path, MAX_CONFIG_BYTES).decode("utf-8-sig"))
    except OSError as error:
        raise UsageError(f"--config {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"--config {path}: not TOML: {error}") from error
    known = LoadSettings.known() | GenerateSettings.known() | ServerSettings.known()
    names = {key_of(name): name for name in known}
    names |= {name.replace("_", "-"): name for name in known}
    settings = {}
    for key, value in content.items():
        name = names.get(key.replace("_", "-"))
        if name is None:
            advice = nearest(key, names) or NO_SETTING
            raise UsageError(f"--config {path}: unknown key {key!r}{advice}")
        if name in settings:
            raise UsageError(f"--config {path}: {key!r} is given twice, under two spellings")
        is_path = name in _PATHS and isinstance(value, str) and (name, value) != ("draft", SELF)
        settings[name] = path.parent / expanded(value) if is_path and value else value
    return settings


_PATHS = frozenset({"model", "draft", "prompt_cache", "api_key_file", "admin_key_file"})
