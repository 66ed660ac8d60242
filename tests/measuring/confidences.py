"""Prints how honest confidences are, and tokens of a pass: nats a node of the token that came.

    python tests/measure.py confidences TARGET DRAFT PROMPTS [PROMPTS ...] [--count 10] [--carried]

Counts, no seconds: every pass verifies as many guesses as it may. Each text is learnt anew unless
`--carried`.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

from edgespec.cli.invocation import read_prompts
from edgespec.engine.settings import EngineSettings
from edgespec.engine.sources.mixer import Mixer
from edgespec.engine.sources.source import Opinion
from edgespec.rules.sampling import SamplingParams
from edgespec.session.opening import open_models
from edgespec.settings.config import LoadSettings
from engine_cases import AskedEngine as Engine
from engine_cases import finish


class WatchedMixer(Mixer):
    """Notes the chance that it gave each token that came."""

    def __init__(self, nats: list[float]) -> None:
        super().__init__()
        self.nats = nats

    def observe(self, opinions: Sequence[Opinion], token: int) -> None:
        if opinions:
            chances = {guess.token: guess.confidence for guess in self.mix(opinions)}
            chance = chances.get(token, 1.0 - sum(chances.values()))
            self.nats.append(-math.log(max(chance, 1e-4)))
        super().observe(opinions, token)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", type=Path)
    parser.add_argument("prompts", type=Path, nargs="+")
    parser.add_argument("--count", type=int, default=10, help="prompts of each file")
    parser.add_argument("--carried", action="store_true", help="texts begin with what others left")


def measure(args: argparse.Namespace) -> None:
    prompts = [prompt for path in args.prompts for prompt in read_prompts(path)[: args.count]]
    load = LoadSettings(model=args.target, draft=args.draft, ctx_size=1024)
    print("| T | lookup | guesses | nats a node | tokens a pass |\n" + "| --- " * 5 + "|")
    with open_models(load, EngineSettings(draft_max=32)) as models:
        for temperature in (0.0, 0.8, 1.0):
            for lookup, n_guesses in ((True, 8), (True, 16), (True, 32), (False, 16)):
                settings = EngineSettings(
                    fallback="full",
                    draft_max=n_guesses,
                    lookup=lookup,
                    no_overlap=True,
                    step_aside=False,
                )
                nats: list[float] = []
                mixer, lengths = WatchedMixer(nats), []
                for prompt in prompts:
                    mixer = mixer if args.carried else WatchedMixer(nats)
                    with Engine(models.target, models.draft, settings) as engine:
                        engine.mixer = mixer
                        tokens = models.target.vocabulary.encode(prompt)
                        sampling = SamplingParams(temperature=temperature, seed=7)
                        result = finish(engine.generate(tokens, sampling, 64))
                    lengths += result.speculation.accepted_lengths
                per_node, per_pass = sum(nats) / len(nats), 1 + sum(lengths) / len(lengths)
                cells = (
                    f"{temperature:g}",
                    lookup,
                    n_guesses,
                    f"{per_node:.3f}",
                    f"{per_pass:.2f}",
                )
                print("|", " | ".join(map(str, cells)), "|", flush=True)
