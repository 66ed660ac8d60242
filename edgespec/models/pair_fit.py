"""Measures how well a draft fits a target: the share of the target's text that it guesses.

The target generates its texts once, with guesses of all sources, and the draft reads them once more
(for a head the target computes its hidden states). Reads no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import count

from edgespec.concurrency.worker import Worker
from edgespec.engine.engine import Engine
from edgespec.engine.generation import Generation
from edgespec.engine.settings import EngineSettings
from edgespec.errors import PairError
from edgespec.pool import line
from edgespec.ports import LanguageModel, PassPart, Progress, token_ids_of
from edgespec.rules.sampling import Sampler, SamplingParams
from edgespec.settings.rule_names import FallbackName
from edgespec.values import (
    GenerationResult,
    ModelInfo,
    SourceStats,
    total_sources,
)

GENERATION_NODES = 16
"""Tree size while the target generates its texts and all sources are counted."""
LOADED_FOR = EngineSettings(draft_max=GENERATION_NODES)
"""Settings for loading both models."""

GREEDY = SamplingParams()
_ALL_SOURCES = EngineSettings(
    fallback=FallbackName.FULL, draft_max=GENERATION_NODES, no_overlap=True, step_aside=False
)


@dataclass(frozen=True, slots=True)
class SourcesFit:
    """Yield of full trees that all sources of guesses grow together."""

    drafted_nodes: int
    rounds: int
    sources: tuple[SourceStats, ...]
    """Counts by source, the one with most nodes first."""

    @property
    def tokens_per_pass(self) -> float:
        return 1 + sum(by.accepted for by in self.sources) / max(self.rounds, 1)

    @property
    def of_draft(self) -> float:
        """Accepted guesses of the draft model in a pass."""
        return sum(by.accepted for by in self.sources if by.source == "draft") / max(self.rounds, 1)


@dataclass(frozen=True, slots=True)
class PairFit:
    """Measurements of a draft on texts of a target."""

    n_prompts: int
    n_tokens: int
    """Tokens of the target's texts."""
    compared: int
    """Tokens within the draft's context and vocabulary."""
    agreed: int
    """Compared tokens that the draft ranks first, or with noise draws."""
    together: SourcesFit
    notes: tuple[str, ...] = ()

    @property
    def agreement(self) -> float:
        return self.agreed / self.compared if self.compared else 0.0


def measure(
    target: LanguageModel,
    draft: LanguageModel,
    prompts: Sequence[Sequence[int]],
    max_tokens: int,
    progress: Progress,
    sampling: SamplingParams = GREEDY,
) -> PairFit:
    """Let the target continue each prompt, by up to `max_tokens`, and count who guessed it.

    `draft` has the target's vocabulary, and guesses with the noise of the draws where `sampling`
    has any.
    Raises PairError if no tree can be grown or verified, and UsageError for a prompt without tokens
    or beyond the context.
    """
    _check("target", target.info, target.info.verifies_guesses)
    _check("draft", draft.info, draft.info.tree_capable)
    texts = target_texts(target, draft, prompts, max_tokens, progress, _ALL_SOURCES, sampling)
    read = count()

    def step() -> None:
        progress("reading the texts with the draft", next(read) / len(texts))

    n_shared = min(target.info.n_vocab, draft.info.n_vocab)
    compared, agreed = count_agreements(draft, texts, n_shared, step, target, sampling)
    return PairFit(
        n_prompts=len(texts),
        n_tokens=sum(len(text.tokens) for text in texts),
        compared=compared,
        agreed=agreed,
        together=SourcesFit(
            GENERATION_NODES,
            sum(text.speculation.rounds for text in texts),
            total_sources(text.speculation.sources for text in texts),
        ),
        notes=tuple(dict.fromkeys(note for text in texts for note in text.notes)),
    )


def _check(role: str, info: ModelInfo, can: bool) -> None:
    if not can:
        raise PairError(
            f"the {role} {info.name} ({info.architecture}) keeps recurrent state, which cannot "
            "drop single tokens: a target decodes alone there, so choose other models to draft"
        )


def target_texts(
    target: LanguageModel,
    draft: LanguageModel | None,
    prompts: Sequence[Sequence[int]],
    max_tokens: int,
    progress: Progress,
    rules: EngineSettings = LOADED_FOR,
    sampling: SamplingParams = GREEDY,
) -> list[GenerationResult]:
    """The target's texts. The draft speeds generation up and changes no text."""

    def written(n_texts: int, n_tokens: int) -> None:
        share = (n_texts + n_tokens / max_tokens) / len(prompts)
        progress("writing with the target", share)

    texts: list[GenerationResult] = []
    with Engine(target, draft, rules) as engine:
        for prompt in prompts:
            events = engine.generate(prompt, sampling, max_tokens)
            texts.append(_finish(events, partial(written, len(texts))))
    return texts


def count_agreements(
    draft: LanguageModel,
    texts: Sequence[GenerationResult],
    n_shared: int,
    step: Callable[[], None] = lambda: None,
    target: LanguageModel | None = None,
    sampling: SamplingParams = GREEDY,
) -> tuple[int, int]:
    """Number of tokens that the draft can predict, and of those that it ranks first, or draws with
    the noise of the text.

    The draft has the first `n_shared` tokens of the vocabulary. `step` is called before each text.
    A head needs its `target`.
    """
    compared = agreed = 0
    with Worker() as worker:
        for text in texts:
            step()
            choices = _first_choices(draft, text, n_shared, worker, target, sampling)
            compared += len(choices)
            agreed += sum(a == b for a, b in zip(choices, text.tokens, strict=False))
    return compared, agreed


def _first_choices(
    draft: LanguageModel,
    text: GenerationResult,
    n_shared: int,
    worker: Worker,
    target: LanguageModel | None,
    sampling: SamplingParams,
) -> list[int]:
    """The token that the draft would pick at each position of the text that it can read."""
    tokens = [*text.prompt_tokens, *text.tokens]
    unreadable = (n for n, token in enumerate(tokens) if token >= n_shared)
    end = min(len(tokens) - 1, draft.info.n_ctx, next(unreadable, len(tokens)))
    start = len(text.prompt_tokens) - 1
    if start >= end:
        return []
    draft.truncate(0)
    if draft.info.reads_features and target is not None and target.info.gives_features:
        if not start:
            return []  # the first token has no features before it
        draft.drop_features(0)
        target.truncate(0)
        target.give_features(draft.info.feature_layers, draft.take_features)
        worker.run(partial(target.evaluate, [PassPart(0, reads=tokens[:end])]), target.cancel)
    worker.run(partial(draft.evaluate, [PassPart(0, reads=tokens[:start])]), draft.cancel)
    sampler = Sampler(sampling, text.prompt_tokens)
    choices: list[int] = []
    rated = token_ids_of(draft, n_shared)
    n_columns = n_shared if rated is None else len(rated)
    # later guesses of a block do not depend on the tokens before them
    step = 1 if draft.info.block_guesses else draft.info.max_nodes
    for begin in range(start, end, step):
        chain = tokens[begin : min(begin + step, end)]
        pool, nodes = line(0, chain), range(len(chain))
        parts = [PassPart(0, pool, nodes)]
        [logits] = worker.run(partial(draft.evaluate, parts), draft.cancel)
        draft.commit(pool, nodes)
        for row, token in zip(logits[:, :n_columns], tokens[begin + 1 :], strict=False):
            if rated is not None:
                found, _ = sampler.foresee(row, 1, tokens=rated)
                choices.append(found[0] if found else -1)
            else:
                choices.append(sampler.draw(row) if sampling.temperature else int(row.argmax()))
            sampler.accept(token, row)
    return choices


def _finish(
    events: Generation,
    shown: Callable[[int], None] | None = None,
) -> GenerationResult:
    """Run a generation to its end; `shown` is called with the number of tokens so far."""
    with closing(events):
        for n_tokens in count():
            if shown is not None:
                shown(n_tokens)
            try:
                next(events)
            except StopIteration as end:
                result: GenerationResult = end.value
                return result
    raise AssertionError("count() does not end")
