"""Finds the layers and copies of a LLaMA that make a given size, and checks the disk.

A plan for a number of copies and layers comes from the caller.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TypeVar

from edgespec.errors import EdgespecError, ModelError, UsageError

FACTORS = (16, 8, 4, 2, 1)
"""Numbers of copies, K, the largest first."""
FEWEST_LAYERS = 24
COMFORTABLE_LAYERS = 96
"""Most layers while a larger K reaches the size."""
MAX_LAYERS = 512
"""Most layers that llama.cpp takes."""
TOLERANCE = 0.02
"""Largest deviation of the result from the requested size, as a share."""


@dataclass(frozen=True, slots=True)
class LlamaShape:
    """Dimensions of a LLaMA."""

    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    tied: bool
    """True if the head is the embedding, transposed."""
    experts: int = 0
    """Experts of every layer; 0 for one feed-forward network."""

    def grown(self, factor: int) -> LlamaShape:
        """The shape of `factor` copies. KV heads stay as they are, hence a layer's KV cache too."""
        return replace(
            self, hidden=self.hidden * factor, ffn=self.ffn * factor, heads=self.heads * factor
        )


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer of the result: which one of the source it copies, and whether it adds nothing."""

    source: int
    silent: bool


class Plan(Protocol):
    """A result of some factor and number of layers."""

    @property
    def size_bytes(self) -> int: ...

    @property
    def layer_bytes(self) -> float:
        """Mean size of a layer."""

    @property
    def layers(self) -> tuple[Layer, ...]: ...


P = TypeVar("P", bound=Plan)


def choose(source: Path, plan: Callable[[int, int], P], source_layers: int, size_bytes: int) -> P:
    """The plan with the fewest layers among those of the right size.

    `plan` takes the factor K and the number of layers; it raises ModelError for a factor that the
    source does not allow. Raises that, or UsageError where no plan comes within TOLERANCE.
    """
    fewest = max(FEWEST_LAYERS, source_layers)
    nearest: P | None = None
    obstacle: ModelError | None = None
    for most in (COMFORTABLE_LAYERS, MAX_LAYERS):
        for factor in FACTORS:
            try:
                smallest = plan(factor, fewest)
            except ModelError as error:  # a smaller factor may do
                obstacle = error
                continue
            n_more = round((size_bytes - smallest.size_bytes) / smallest.layer_bytes)
            n_layers = min(max(fewest + n_more, fewest), max(most, fewest))
            planned = smallest if n_layers == fewest else plan(factor, n_layers)
            miss = abs(planned.size_bytes - size_bytes)
            if miss <= TOLERANCE * size_bytes:
                return planned
            if nearest is None or miss < abs(nearest.size_bytes - size_bytes):
                nearest = planned
    if obstacle is not None:
        raise obstacle
    assert nearest is not None
    raise UsageError(
        f"{source} cannot be enlarged to {mib(size_bytes)}: the nearest size is "
        f"{mib(nearest.size_bytes)}, with {len(nearest.layers)} layers"
    )


def spread(n_real: int, n_layers: int) -> tuple[Layer, ...]:
    """The real layers in their order, evenly spread, each followed by its silent copies."""
    sources = [index * n_real // n_layers for index in range(n_layers)]
    return tuple(
        Layer(source, silent=index > 0 and sources[index - 1] == source)
        for index, source in enumerate(sources)
    )


def check_room(out: Path, size_bytes: int) -> None:
    """Raise EdgespecError where the disk has no room for `out`."""
    free = shutil.disk_usage(out.parent).free
    if free < size_bytes:
        raise EdgespecError(
            f"{out} needs {mib(size_bytes)}, {mib(free)} are free there: choose a smaller size "
            "or another disk"
        )


def check_original(source: Path, original: object) -> None:
    """Raise ModelError for a source that was enlarged from `original`, if that is not None."""
    if original is not None:
        raise ModelError(f"{source} is enlarged already: start from {original}")


@contextmanager
def writing(out: Path) -> Iterator[None]:
    """Raise EdgespecError where writing `out` fails with OSError in the block."""
    try:
        yield
    except OSError as error:
        raise EdgespecError(f"{out} could not be written: {error.strerror}") from error


def mib(n_bytes: int) -> str:
    return f"{n_bytes / (1 << 20):.1f} MiB"
