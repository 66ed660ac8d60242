"""Shared by tests of sources: a text as a source sees it."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from edgespec.engine.sources.source import Opinion, Source
from edgespec.pool import Pool
from edgespec.rules.sampling import Sampler, SamplingParams


def text_of(committed: Sequence[int], last_token: int = 0, client: str = "", slot: int = 0) -> Any:
    """A text with these committed tokens and this root."""
    return SimpleNamespace(
        slot=SimpleNamespace(number=slot, committed=[*committed]),
        last_token=last_token,
        sampler=Sampler(SamplingParams()),
        terms=SimpleNamespace(client=client),
    )


def ask(source: Source, pool: Pool, nodes: Sequence[int], text: Any) -> list[Opinion | None]:
    """Opinions of a source after each of `nodes`."""
    source.guess(pool, nodes, {text.slot.number: text})
    return [source.said(text).get(int(pool.key[node])) for node in nodes]


def tokens_of(opinion: Opinion | None) -> list[int] | None:
    return None if opinion is None else [*opinion.tokens]
