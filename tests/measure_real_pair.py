"""Tokens per pass of a real model by kind of prompt, with and without lookups: counts, no seconds.

    python tests/measure_real_pair.py [DRAFT] [-n TOKENS] [--kinds code prose]

The target writes the same greedy texts for every row; nothing is replayed, since lookups learn from
its logits and heads from its hidden states. An enlarged target writes what its source writes, so
the small one is measured.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

from edgespec.cli.invocation import read_prompts
from edgespec.engine.engine import Engine
from edgespec.engine.settings import EngineSettings
from edgespec.models import catalogue, pair_fit
from edgespec.models.embedded import models_folder
from edgespec.session import session
from edgespec.settings.config import LoadSettings, PacerName
from edgespec.values import GenerationResult

KINDS = ("conversation", "code", "prose", "repeating")
NODES = (16, 32, 64)
LINE = 8
"""Guesses of a line."""


def tokens_per_pass(
    models: SimpleNamespace,
    texts: list[GenerationResult],
    rules: EngineSettings,
    with_draft: bool,
) -> float:
    rounds = n_tokens = 0
    for text in texts:
        models.target.truncate(0)
        if with_draft:
            models.draft.truncate(0)
        with Engine(models.target, models.draft if with_draft else None, rules) as engine:
            events = engine.generate(text.prompt_tokens, pair_fit._GREEDY, len(text.tokens))
            done = pair_fit._finish(events)
        rounds += done.speculation.rounds
        n_tokens += len(done.tokens)
    return n_tokens / max(rounds, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("draft", nargs="?", type=Path)
    parser.add_argument("--target", default="smollm2")
    parser.add_argument("-n", type=int, default=48)
    parser.add_argument("--n-prompts", type=int, default=6, help="prompts of each kind")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    options = parser.parse_args()
    settings = LoadSettings(model=catalogue.find(options.target), draft=options.draft, ctx_size=512)
    rows = ["draft", "both"] if options.draft else []
    loaded_for = replace(pair_fit.LOADED_FOR, lookup=True, draft_max=max(NODES))
    with session.open_models(settings, loaded_for) as models:
        for kind in options.kinds:
            prompts = read_prompts(models_folder() / "smollm2" / f"{kind}.jsonl")
            chosen = prompts[: options.n_prompts]
            encoded = [models.target.vocabulary.encode(prompt) for prompt in chosen]
            texts = pair_fit.greedy_texts(
                models.target, None, encoded, options.n, lambda *told: None, loaded_for
            )
            cells = []
            if options.draft:
                n_vocab = models.target.info.n_vocab
                compared, agreed = pair_fit.count_agreed(
                    models.draft, texts, n_vocab, target=models.target
                )
                cells.append(f"agreement {agreed / compared:.3f} of {compared}")
            for row in ["lookups", *rows]:
                for nodes in NODES:
                    rules = replace(pair_fit.full_trees(nodes), lookup=row != "draft")
                    found = tokens_per_pass(models, texts, rules, row != "lookups")
                    cells.append(f"{row} {nodes}: {found:.2f}")
            for row in rows:
                rules = replace(
                    pair_fit.full_trees(LINE), pacer=PacerName.LINEAR, lookup=row == "both"
                )
                found = tokens_per_pass(models, texts, rules, True)
                cells.append(f"{row}, line of {LINE}: {found:.2f}")
            print(f"{kind}: {'; '.join(cells)}", flush=True)


if __name__ == "__main__":
    main()
