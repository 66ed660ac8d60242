"""Validated settings of a bench, beside those of its models: names and ranges."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from edgespec.settings.base import Flag, Settings

N_PROMPTS = 3
"""Prompts of those that come with edgespec."""
SLOW_TOKENS = 8
"""Tokens of runs whose passes yield about one token each."""
QUICK: dict[str, Any] = {"repetitions": 1, "max_tokens": 16, "temperature": 0.0}
"""Settings of `--quick`, which other flags override."""


def _parts(value: object) -> object:
    """Values separated by commas, without duplicates."""
    return tuple(dict.fromkeys(value.split(","))) if isinstance(value, str) else value


class BenchSettings(Settings):
    """Settings of one bench."""

    modes: Annotated[tuple[str, ...] | None, Flag(metavar="LIST"), BeforeValidator(_parts)] = None
    """Names from below, separated by commas. Default: all."""
    prompts: Annotated[Path | None, Flag(metavar="FILE")] = None
    """File of prompts: one a line, or in .jsonl an object's `prompt`. Default: three beginnings of
    Python code, with --quick one."""
    repetitions: Annotated[int, Flag(metavar="N"), Field(ge=1)] = 3
    """Runs of each mode on each prompt. Default: 3, with --quick 1."""
    max_tokens: Annotated[int, Flag(metavar="N", short="-n"), Field(ge=1)] = 48
    """Tokens of each run, but 8 where a pass yields hardly more than one. Default: 48, with --quick
    16."""
    temperature: Annotated[float | None, Flag(metavar="T"), Field(ge=0)] = None
    """Measure at this temperature, too, with the filters of `edgespec chat`; 0: greedy texts alone,
    in half of the time. Default: what chat uses: the model's own, otherwise 0.8; with --quick 0."""
    quick: Annotated[bool, Flag()] = False
    """Few, short runs: a first look."""

    @model_validator(mode="before")
    @classmethod
    def _is_quick(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**QUICK, **values} if values.get("quick") else values

    def tokens_of(self, is_slow: bool) -> int:
        return min(SLOW_TOKENS, self.max_tokens) if is_slow else self.max_tokens
