"""Adapts a draft to its target's answers: trains it to predict them.

Texts are written here. A tool that knows the format trains, in a process of its own, which Ctrl-C
ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from edgespec import extras
from edgespec.errors import ModelError, UsageError
from edgespec.jobs.launching import launch
from edgespec.ports import Progress
from edgespec.session.session import load
from edgespec.settings.config import LoadSettings
from edgespec.tools import load_tool
from edgespec.values import TrainingText

MIN_PROMPTS = 11
"""Fewer prompts are not representative."""
HELD_OUT_SHARE, MAX_HELD_OUT = 0.1, 20
"""Prompts held out of the training: they measure the draft before and after."""
N_SAID = 8
"""Most probable tokens of the target that are learnt in each place."""


def check(draft: Path) -> None:
    """Raise ModelError for a draft that cannot be adapted, UsageError without training packages."""
    tool = load_tool()
    if not draft.exists() or not tool.recognises(draft):
        raise ModelError(f"{draft} cannot be adapted: name a draft in a GGUF file")
    tool.check_adaptable(draft)
    extras.find("torch", "adapt", "adapting a draft needs PyTorch")


def divided(prompts: Sequence[str]) -> tuple[list[str], list[str]]:
    """Different prompts to learn from, and those that measure. Raises UsageError for too few."""
    prompts = list(dict.fromkeys(prompts))
    if len(prompts) < MIN_PROMPTS:
        raise UsageError(
            f"{len(prompts)} different prompts are too few to learn from: name a file of at least "
            f"{MIN_PROMPTS} with --prompts"
        )
    n_held_out = min(MAX_HELD_OUT, int(HELD_OUT_SHARE * len(prompts)))
    held_out = prompts[:: len(prompts) // n_held_out][:n_held_out]
    return [prompt for prompt in prompts if prompt not in held_out], held_out


def answers(
    settings: LoadSettings, prompts: Sequence[str], max_tokens: int, progress: Progress
) -> list[TrainingText]:
    """The target's greedy answers to `prompts`, with the most probable tokens in each place."""
    texts = []
    with load(settings, progress=progress) as session:
        for n, prompt in enumerate(prompts):
            progress("answers of the target", n / len(prompts))
            tokens = session.encode(prompt)
            with session.stream(tokens, max_tokens=max_tokens, logprobs=N_SAID) as generation:
                events = list(generation)
            said = [event.logprobs.top for event in events if event.logprobs]
            answer = [event.token for event in events]
            texts.append(TrainingText([*tokens, *answer], len(tokens), said))
    return texts


def train(
    draft: Path,
    out: Path,
    name: str,
    texts: Sequence[TrainingText],
    n_threads: int,
    progress: Progress,
) -> float:
    """Train the draft on `texts` in a process of its own and write it to `out` under `name`;
    returns the mean loss of the last epoch, in nats per token.

    Raises the errors of the training, and EdgespecError if the process dies.
    """
    share = out.with_suffix(".progress")

    def tick() -> None:
        with suppress(OSError, ValueError):
            progress("adapting the draft", float(share.read_text(encoding="utf-8")))

    return launch(partial(_train, draft, out, name, texts, n_threads, share), tick=tick).result


def _train(
    draft: Path, out: Path, name: str, texts: Sequence[TrainingText], n_threads: int, progress: Path
) -> float:
    """Train in this process and return the final loss; writes the share done to `progress`."""

    def report(share: float) -> None:
        progress.write_text(f"{share:.4f}", encoding="utf-8")

    return load_tool().adapt(draft, out, name, texts, n_threads, report)
