"""Adapts a draft to texts that `--learn` kept: trains it to predict the target's answers.

Texts are chosen here. A tool that knows the format trains, in a process of its own, which Ctrl-C
ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from edgespec import extras
from edgespec.errors import ModelError, UsageError
from edgespec.files import cache_folder
from edgespec.files.training_texts import TextsHeader, TrainingText, TrainingTexts, digest
from edgespec.jobs.launching import launch
from edgespec.models.describe import describe
from edgespec.ports import Progress
from edgespec.tools import ModelTool, load_tool
from edgespec.values import ModelInfo

EXTRA = "adapt"
MIN_TEXTS = 10
"""Fewer texts are not representative."""
HELD_OUT_SHARE, MAX_HELD_OUT = 0.1, 20
"""Texts held out of the training: their prompts measure the draft before and after."""
MAX_PROMPT = 512
"""Most tokens of a held-out prompt; longer ones lose their beginning."""


@dataclass(frozen=True, slots=True)
class TrainingData:
    """Training and held-out texts of one pair of models."""

    target: Path
    learnt: tuple[TrainingText, ...]
    held_out: tuple[TrainingText, ...]

    @property
    def prompts(self) -> list[list[int]]:
        """Tokens of the held-out prompts."""
        return [
            list(text.tokens[max(0, text.n_prompt - MAX_PROMPT) : text.n_prompt])
            for text in self.held_out
        ]


@dataclass(frozen=True, slots=True)
class AdaptationResult:
    """Figures of a finished training."""

    n_texts: int
    n_tokens: int
    """Tokens of the answers."""
    n_corrections: int
    """Positions with the target's distribution, where no guess was accepted."""
    loss: float
    """Mean loss of the last epoch, in nats per token."""


def check(draft: Path) -> None:
    """Raise ModelError for a draft that cannot be adapted, UsageError without training packages."""
    _tool(draft).check_adaptable(draft)
    for package in ("torch", "transformers"):
        extras.find(package, EXTRA, "adapting a draft needs PyTorch")


def training_data(draft: Path, target: Path | None = None) -> TrainingData:
    """The texts that were kept with this draft and, if there are several targets, `target`.

    Raises UsageError if there are none or too few, or if the target is ambiguous.
    """
    info, kept = describe(draft).info, TrainingTexts(cache_folder.learnt())
    pair = _choose(kept.pairs(info), info, target)
    texts = kept.texts(info, pair.target_digest)
    n_held_out = min(MAX_HELD_OUT, int(HELD_OUT_SHARE * len(texts)))
    held_out = texts[:: max(1, len(texts) // n_held_out)][:n_held_out] if n_held_out else []
    asked = {tuple(text.tokens[: text.n_prompt]) for text in held_out}
    learnt = [text for text in texts if tuple(text.tokens[: text.n_prompt]) not in asked]
    if len(learnt) < MIN_TEXTS or not held_out:
        raise UsageError(
            f"{len(texts)} texts are kept with the draft {info.name}, too few to learn from (at "
            f"least {MIN_TEXTS + 1}, of different prompts): generate more with --learn"
        )
    path = target or Path(pair.target_path)
    if not path.exists():
        raise UsageError(
            f"the target {pair.target} is not at {pair.target_path or 'a known place'}: name it "
            "with --learnt-with"
        )
    return TrainingData(path, tuple(learnt), tuple(held_out))


def train(
    draft: Path,
    out: Path,
    name: str,
    texts: Sequence[TrainingText],
    n_threads: int,
    progress: Progress,
) -> AdaptationResult:
    """Train the draft on `texts` in a process of its own and write it to `out` under `name`.

    Raises the errors of the training, and EdgespecError if the process dies.
    """
    share = out.with_suffix(".progress")

    def tick() -> None:
        with suppress(OSError, ValueError):
            progress("adapting the draft", float(share.read_text(encoding="utf-8")))

    loss = launch(partial(_train, draft, out, name, texts, n_threads, share), tick=tick).result
    return AdaptationResult(
        n_texts=len(texts),
        n_tokens=sum(len(text.tokens) - text.n_prompt for text in texts),
        n_corrections=sum(len(text.corrections) for text in texts),
        loss=loss,
    )


def _choose(pairs: Sequence[TextsHeader], draft: ModelInfo, target: Path | None) -> TextsHeader:
    if target is not None:
        wanted = digest(describe(target).info)
        pairs = [pair for pair in pairs if pair.target_digest == wanted]
    if not pairs:
        raise UsageError(
            f"no texts are kept {f'of {target} ' if target else ''}with the draft {draft.name}: "
            "generate, chat, serve or batch with --learn first"
        )
    if len(pairs) > 1:
        found = ", ".join(pair.target_path or pair.target for pair in pairs)
        raise UsageError(
            f"texts of several targets are kept with the draft {draft.name} ({found}): choose one "
            "with --learnt-with"
        )
    return pairs[0]


def _tool(draft: Path) -> ModelTool:
    tool = load_tool()
    if not draft.exists() or not tool.recognises(draft):
        raise ModelError(f"{draft} cannot be adapted: name a draft in a GGUF file")
    return tool


def _train(
    draft: Path, out: Path, name: str, texts: Sequence[TrainingText], n_threads: int, progress: Path
) -> float:
    """Train in this process and return the final loss; writes the share done to `progress`."""

    def report(share: float) -> None:
        progress.write_text(f"{share:.4f}", encoding="utf-8")

    return load_tool().adapt(draft, out, name, texts, n_threads, report)
