"""Tokens per pass of drafts of a real model by kind of prompt, as a table: counts, no seconds.

    python tests/measure.py real-pair [DRAFT ...] [--together] [-n TOKENS] [--kinds code prose]

A row has a line of 8 guesses and full trees, without and with lookups; `--together` adds one of all
drafts at once. The target writes the same greedy texts for every cell; nothing is replayed, since
lookups learn from its logits and heads from its hidden states. An enlarged target writes what its
source writes, so the small one is measured.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np

from edgespec.cli.invocation import read_prompts
from edgespec.engine.engine import Engine
from edgespec.engine.settings import EngineSettings
from edgespec.engine.sources.line_up import line_up
from edgespec.models import catalogue, pair_fit
from edgespec.models.embedded import models_folder
from edgespec.ports import LanguageModel
from edgespec.session.opening import open_models
from edgespec.settings.config import LoadSettings
from edgespec.settings.rule_names import FallbackName
from edgespec.values import GenerationResult

KINDS = ("conversation", "code", "prose", "repeating")
NODES = (16, 32, 64)
LINE = 8
"""Guesses of a line."""


def tokens_per_pass(
    target: LanguageModel,
    drafts: Sequence[LanguageModel],
    texts: Sequence[GenerationResult],
    rules: EngineSettings,
) -> float:
    """Tokens of each pass over `target`, which finds nothing learnt when it begins a text."""
    first, *others = [*sorted(drafts, key=lambda draft: not draft.info.reads_features), None]
    rounds = n_tokens = 0
    for text in texts:
        for model in (target, *drafts):
            model.truncate(0)
        drafters = []
        for number, draft in enumerate(filter(None, others)):
            grower = line_up(target, draft, (), rules.but(lookup=False))
            assert grower is not None
            (drafter,) = grower._drafters
            drafter.source = f"draft {number}"
            drafters.append(drafter)
        with Engine(target, first, rules, drafters=drafters) as engine:
            _give_features(target, drafts)
            events = engine.generate(text.prompt_tokens, pair_fit.GREEDY, len(text.tokens))
            done = pair_fit._finish(events)
        assert done.tokens == text.tokens
        rounds += done.speculation.rounds
        n_tokens += len(done.tokens)
    return n_tokens / max(rounds, 1)


def _give_features(target: LanguageModel, drafts: Sequence[LanguageModel]) -> None:
    """Let every head have what the target computes; they read the same layers."""
    heads = [draft for draft in drafts if draft.info.reads_features]
    if len(heads) > 1:

        def take(position: int, rows: np.ndarray) -> None:
            for head in heads:
                head.take_features(position, rows)

        target.give_features(heads[0].info.feature_layers, take)


def full_trees(n_nodes: int) -> EngineSettings:
    """Settings with which every pass verifies up to `n_nodes` guesses."""
    return EngineSettings(
        fallback=FallbackName.FULL,
        draft_max=n_nodes,
        pins_draft_max=True,
        no_overlap=True,
        step_aside=False,
    )


def row(
    target: LanguageModel, drafts: Sequence[LanguageModel], texts: Sequence[GenerationResult]
) -> str:
    """Cells: a line, trees, both with lookups, and the trees' shares of the line."""
    found = []
    for lookup in (False, True) if drafts else (True,):
        line = full_trees(LINE).but(n_candidates=1)
        rules = [line, *(full_trees(nodes) for nodes in NODES)]
        each = [tokens_per_pass(target, drafts, texts, r.but(lookup=lookup)) for r in rules]
        found += [f"{each[0]:.2f}", " ".join(f"{n:.2f}" for n in each[1:])]
    return " | ".join(found if drafts else ["", "", *found])


def agreement(target: LanguageModel, draft: LanguageModel, texts: list[GenerationResult]) -> str:
    compared, agreed = pair_fit.count_agreements(draft, texts, target.info.n_vocab, target=target)
    return f"{agreed / compared:.3f}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("drafts", nargs="*", type=Path)
    parser.add_argument("--together", action="store_true")
    parser.add_argument("--target", default="smollm2")
    parser.add_argument("-n", type=int, default=48)
    parser.add_argument("--n-prompts", type=int, default=6, help="prompts of each kind")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)


def measure(options: argparse.Namespace) -> None:
    settings = LoadSettings(model=catalogue.find(options.target), ctx_size=512, threads=1)
    loaded_for = replace(pair_fit.LOADED_FOR, lookup=True, draft_max=max(NODES))
    with ExitStack() as stack:
        pairs = [
            stack.enter_context(
                open_models(settings.model_copy(update={"draft": path}), loaded_for)
            )
            for path in options.drafts or [None]
        ]
        target, drafts = pairs[0].target, [pair.draft for pair in pairs if pair.draft is not None]
        print("| prompts | draft | agreement | line | tree | line, lookups | tree, lookups |")
        print("| --- | --- | --- | --- | --- | --- | --- |")
        for kind in options.kinds:
            prompts = read_prompts(models_folder() / "smollm2" / f"{kind}.jsonl")
            encoded = [target.vocabulary.encode(each) for each in prompts[: options.n_prompts]]
            texts = pair_fit.target_texts(
                target, None, encoded, options.n, lambda *told: None, loaded_for
            )
            print(f"| {kind} | none | | {row(target, [], texts)} |", flush=True)
            for path, pair in zip(options.drafts, pairs, strict=False):
                assert pair.draft is not None
                agreed = agreement(pair.target, pair.draft, texts)
                cells = row(pair.target, [pair.draft], texts)
                print(f"| | {path.stem} | {agreed} | {cells} |", flush=True)
            if options.together and len(drafts) > 1:
                print(f"| | together | | {row(target, drafts, texts)} |", flush=True)
