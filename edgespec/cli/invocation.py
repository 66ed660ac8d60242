"""Turns what was given, as flags and in a file, into checked settings.

Flags win over the file, which wins over defaults. Nothing is dropped in silence.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from edgespec.cli import fetching
from edgespec.config import DRAFTING, GenerateSettings, LoadSettings, read_config
from edgespec.errors import UsageError
from edgespec.models.embedded import embedded_pair, find_config
from edgespec.settings import spell


@dataclass(frozen=True, slots=True)
class Request:
    """Settings, and what the user should know about how they came about."""

    load: LoadSettings
    generate: GenerateSettings
    notes: tuple[str, ...] = ()


def settings_from(given: argparse.Namespace) -> Request:
    """Settings of a command that takes models, which are fetched if their names are a hub's.

    Raises UsageError, ModelError and FetchError.
    """
    notes = fetching.bring(given)
    known = {*LoadSettings.model_fields, *GenerateSettings.model_fields}
    flags = {name: value for name, value in vars(given).items() if name in known}
    config = read_config(find_config(given.config)) if "config" in given else {}
    _settle_draft(flags, config, notes)
    settings = config | flags
    _choose_models(settings, notes)
    if settings.get("draft") is None:
        _drop(DRAFTING & config.keys() - flags.keys(), settings, notes)
        settings["no_draft"] = True
    return Request(
        LoadSettings.model_validate(_part(settings, LoadSettings)),
        GenerateSettings.model_validate(_part(settings, GenerateSettings)),
        tuple(notes),
    )


def read_prompt(given: argparse.Namespace, stdin: TextIO | None = None) -> str:
    """The prompt from a flag, a file or a pipe, exactly as given. Raises UsageError."""
    stdin = stdin or sys.stdin
    if "prompt" in given and "file" in given:
        raise UsageError("--prompt and --file contradict each other: give one of them")
    if "prompt" in given:
        prompt, source = str(given.prompt), "--prompt"
    elif "file" in given:
        prompt, source = _read(Path(given.file), "--file"), f"--file {given.file}"
    elif not stdin.isatty():
        prompt, source = _decode(stdin.buffer.read(), "stdin"), "stdin"
    else:
        raise UsageError("there is no prompt: give -p TEXT or -f FILE, or pipe text to stdin")
    if not prompt:
        raise UsageError(f"the prompt from {source} is empty: give -p TEXT or -f FILE")
    _check_unicode(prompt, source)
    return prompt


def read_prompts(path: Path) -> list[str]:
    """The prompts of a file: one a line, or in a file that ends in .jsonl one `prompt` an object.

    Raises UsageError.
    """
    lines = re.split("\r?\n", _read(path, "--prompts"))
    prompts = [
        _prompt_of(line, f"--prompts {path}, line {number}") if path.suffix == ".jsonl" else line
        for number, line in enumerate(lines, 1)
        if line.strip()
    ]
    if not prompts:
        raise UsageError(f"--prompts {path}: there is no prompt in it")
    return prompts


def _prompt_of(line: str, source: str) -> str:
    """The prompt of one JSON object."""
    try:
        content = json.loads(line)
    except json.JSONDecodeError as error:
        raise UsageError(f"{source} is no JSON: {error.msg}") from error
    prompt = content.get("prompt") if isinstance(content, dict) else None
    if not isinstance(prompt, str) or not prompt:
        raise UsageError(f'{source} is no object with a "prompt" that is text')
    return prompt


def _settle_draft(flags: dict[str, Any], config: dict[str, Any], notes: list[str]) -> None:
    """A flag about the draft overrules what the file says about it."""
    for settings in (flags, config):
        if settings.get("no_draft") and "draft" in settings:
            raise UsageError("--no-draft contradicts --model-draft: leave one of them out")
    if flags.get("no_draft"):
        _drop({"draft", "n_gpu_layers_draft"} & config.keys(), config, notes)
    if "draft" in flags:
        config.pop("no_draft", None)


def _choose_models(settings: dict[str, Any], notes: list[str]) -> None:
    if "model" in settings:
        if "draft" not in settings and not settings.get("no_draft"):
            notes.append("no draft: the target decodes alone; -md names a model that guesses")
        return
    if "draft" in settings:
        raise UsageError("--model-draft needs the model it drafts for: name it with --model")
    pair = embedded_pair()
    settings["model"] = pair.target
    if not settings.get("no_draft"):
        settings["draft"] = pair.draft


def _drop(names: Iterable[str], settings: dict[str, Any], notes: list[str]) -> None:
    for name in sorted(names):
        del settings[name]
        notes.append(f"{spell(name)} of the --config file is not used: there is no draft")


def _part(settings: dict[str, Any], of: type[LoadSettings | GenerateSettings]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name in of.model_fields}


def _read(path: Path, flag: str) -> str:
    try:
        return _decode(path.read_bytes(), f"{flag} {path}")
    except OSError as error:
        raise UsageError(f"{flag} {path}: {error.strerror}") from error


def _decode(data: bytes, source: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"the prompt from {source} is not UTF-8 at byte {error.start}: convert it first"
        ) from error


def _check_unicode(prompt: str, source: str) -> None:
    """Bytes of the command line that are no UTF-8 arrive as lone surrogates."""
    try:
        prompt.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UsageError(f"the prompt from {source} is not UTF-8: convert it first") from error
