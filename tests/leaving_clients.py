"""Clients that leave in the middle of a prompt, and their next try, for tests of every runtime."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np

from edgespec.engine.settings import EngineSettings
from edgespec.ports import LanguageModel, PassPart, Progress
from edgespec.rules.sampling import SamplingParams
from edgespec.state.prefix_cache import PrefixCache
from engine_cases import AskedEngine as Engine
from engine_cases import finish
from fake_model import FakeModel, fixed_text

N_NEW = 8
WARM = SamplingParams(temperature=0.9, seed=3)


class Leaving:
    """A target whose client leaves once half of a prompt is read."""

    def __init__(self, target: LanguageModel, n_tokens: int) -> None:
        self._target, self.n_tokens = target, n_tokens
        self.leave: Callable[[], None] | None = None
        self.first: np.ndarray | None = None
        """The logits after the first node that was evaluated."""

    def __getattr__(self, name: str) -> object:
        return getattr(self._target, name)

    def evaluate(
        self, parts: Sequence[PassPart], progress: Progress | None = None
    ) -> list[np.ndarray]:
        def told(what: str, share: float) -> None:
            if progress:
                progress(what, share)
            if share > 0.45 and self.leave:
                self.leave()

        logits = self._target.evaluate(parts, told)
        told("", self._target.committed_of(parts[0].slot) / self.n_tokens)
        if self.first is None and len(logits[0]):
            self.first = logits[0][0].copy()
        return logits


def text_of(engine: Engine, prompt: Sequence[int]) -> tuple[Sequence[int], int]:
    """The tokens after a prompt, and how many of it were known."""
    result = finish(engine.generate(prompt, WARM, N_NEW))
    return result.tokens, result.reused_tokens


def check_next_try(
    opened: Callable[[], LanguageModel],
    whole: Sequence[int],
    least: int,
    drafted: bool = False,
    folder: Path | None = None,
) -> None:
    """The second try knows `least` tokens at least and writes what a fresh model does, also after a
    prompt that goes on otherwise."""
    other = [*whole[: len(whole) * 4 // 5], *whole[2 : len(whole) // 5]]
    expected = []
    with closing(opened()) as target:
        for prompt in (whole, other):
            seen = Leaving(target, len(whole))
            with Engine(seen, None, EngineSettings(remember=False)) as engine:  # type: ignore[arg-type]
                expected.append((text_of(engine, prompt)[0], seen.first))
                target.truncate(0)
        n_vocab = target.info.n_vocab
    guesses = [token + (n % 3 == 2) for n, token in enumerate(expected[0][0])]
    draft = (
        FakeModel(fixed_text(guesses, n_vocab, len(whole)), n_vocab, n_ctx=2048)
        if drafted
        else None
    )
    for n, (prompt, (text, first)) in enumerate(zip((whole, other), expected, strict=True)):
        with closing(opened()) as target:
            leaving = Leaving(target, len(whole))
            place = PrefixCache(folder / f"{n}", 1 << 30, target, None).place if folder else None
            settings = EngineSettings(remember=False, fallback="full", step_aside=False)
            with Engine(leaving, draft, settings, prefixes=place) as engine:  # type: ignore[arg-type]
                generation = engine.generate(whole, WARM, N_NEW)
                leaving.leave = generation.cancel
                left = finish(generation)
                assert (left.finish_reason, left.tokens) == ("cancelled", ())
                leaving.leave = None
                if folder:
                    text_of(engine, [5, 6, 7])
                leaving.first = None
                known, n_known = text_of(engine, prompt)
            assert known == text
            assert drafted or np.array_equal(leaving.first, first)
            assert n_known >= least
            assert left.timings.prompt_s > 0
            assert least < len(whole) - left.unread_tokens or not least
