"""Validated settings of a bench. Knows names, sizes and ranges, but no model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from edgespec.errors import UsageError
from edgespec.settings.base import Flag, Settings
from edgespec.settings.parsing import MAX_TEXTS, rate
from edgespec.settings.units import format_size, parse_size

UNLIMITED = "unlimited"
MIN_MEMORY_BYTES = 80 << 20
"""Least memory limit: an interpreter with the libraries takes as much."""
QUICK: dict[str, Any] = {
    "n_prompts": 1,
    "repetitions": 1,
    "max_tokens": 16,
    "baseline_tokens": 4,
    "temperature": 0.0,
}
"""Settings of `--quick`, which other flags override."""


def _memory(value: object) -> object:
    """The validated memory limit as text; percentages refer to models that are not known yet."""
    text = str(value).strip().lower()
    if text == UNLIMITED:
        return text
    nbytes = parse_size(text, 1 << 40, f"--memory {value}")
    if not text.endswith("%") and nbytes < MIN_MEMORY_BYTES:
        raise UsageError(
            f"--memory {value}: a run takes {format_size(MIN_MEMORY_BYTES)} before any model; give "
            "more, or a share of the models' size like 50%"
        )
    return text


def _size(value: str | int) -> int:
    return parse_size(value, named=f"--size {value}")


def _parts(value: object) -> object:
    """Values separated by commas, without duplicates."""
    return tuple(dict.fromkeys(value.split(","))) if isinstance(value, str) else value


def _paths(value: object) -> object:
    """A single path as a tuple."""
    return (value,) if isinstance(value, str | Path) else value


class BenchSettings(Settings):
    """Settings of one bench."""

    model: Annotated[Path | None, Flag(metavar="FILE", short="-m")] = None
    """Target: a GGUF file or an ONNX model's folder. Default: the embedded one, enlarged."""
    draft: Annotated[
        tuple[Path, ...], Flag(metavar="FILE", short="-md"), BeforeValidator(_paths)
    ] = ()
    """Draft model: a small one that guesses, a head, `self` for one made from the target, or the
    target's name for a layer of its own (MTP); may be given several times to compare them.
    Default: with -m only what comes with the model."""
    pair: Annotated[str, Flag(metavar="NAME")] = "embedded"
    """Pair whose target is enlarged if need be: embedded, or a real model that is fetched once,
    smollm2 or qwen2.5-coder."""
    size: Annotated[int, Flag(metavar="SIZE"), BeforeValidator(_size)] = 1 << 30
    """Size of the enlarged target."""
    memory: Annotated[str, Flag(metavar="SIZE"), BeforeValidator(_memory)] = "50%"
    """Memory limit: 1GiB, a share of target plus largest draft like 30%, or unlimited."""
    read_limit: Annotated[int | None, Flag(metavar="RATE"), BeforeValidator(rate)] = None
    """Bytes read per second, like 300M, in decimal units as storage is sold; of all modes where
    control groups can be made, otherwise of paged weights. Default: no limit."""
    modes: Annotated[tuple[str, ...] | None, Flag(metavar="LIST"), BeforeValidator(_parts)] = None
    """Names from below, separated by commas. Default: all."""
    parallel: Annotated[
        tuple[Annotated[int, Field(ge=1, le=MAX_TEXTS)], ...] | None,
        Flag(metavar="LIST"),
        BeforeValidator(_parts),
    ] = None
    """Numbers of texts at once, like 1,2,4,8: tokens/s together and for each text. Default: single
    texts."""
    prompts: Annotated[Path | None, Flag(metavar="FILE")] = None
    """File of prompts: one a line, or in .jsonl an object's `prompt`. Default: beginnings of Python
    code."""
    n_prompts: Annotated[int, Flag(metavar="N"), Field(ge=1)] = 3
    """Number of prompts, from the beginning of the file."""
    repetitions: Annotated[int, Flag(metavar="N"), Field(ge=1)] = 3
    """Runs of each mode on each prompt."""
    max_tokens: Annotated[int, Flag(metavar="N", short="-n"), Field(ge=1)] = 48
    """Tokens of each run."""
    baseline_tokens: Annotated[int, Flag(metavar="N"), Field(ge=1)] = 16
    """Tokens of runs whose passes yield about one token each."""
    ctx_size: Annotated[int, Flag(metavar="N", short="-c"), Field(ge=1)] = 512
    """Tokens of context."""
    temperature: Annotated[float | None, Flag(metavar="T"), Field(ge=0)] = None
    """Measure at this temperature, too, with the filters of `edgespec chat`; 0: greedy texts alone,
    in half of the time. Default: what chat uses: the model's own, otherwise 0.8."""
    threads: Annotated[int | None, Flag(metavar="N", short="-t"), Field(ge=1)] = None
    """Threads of each run. Default: one for each physical core."""

    @model_validator(mode="after")
    def _applies(self) -> Self:
        if self.model is None and self.draft:
            raise UsageError("--model-draft needs the model it drafts for: name it with --model")
        for name in ("size", "pair"):
            if self.model is not None and name in self.model_fields_set:
                raise UsageError(f"--{name} is of the enlarged target: leave it out with --model")
        return self

    def memory_bytes(self, models_bytes: int) -> int | None:
        """The limit for models of this size; None: no limit."""
        return None if self.memory == UNLIMITED else parse_size(self.memory, models_bytes)

    def tokens_of(self, is_slow: bool) -> int:
        return min(self.baseline_tokens, self.max_tokens) if is_slow else self.max_tokens
