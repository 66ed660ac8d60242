"""Adapts a draft in a GGUF file: reads its weights, trains, writes the new weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from edgespec.errors import UsageError
from edgespec.files.training_texts import TrainingText
from edgespec_runtimes.adapt import adaptable, llama, weights
from edgespec_runtimes.adapt.lessons import lessons_of
from edgespec_runtimes.adapt.training import train
from edgespec_runtimes.gguf.file.header import read_header
from edgespec_runtimes.gguf.file.validation import validate


def adapt(
    source: Path,
    out: Path,
    name: str,
    texts: Sequence[TrainingText],
    n_threads: int,
    report: Callable[[float], None],
) -> float:
    """Train the draft `source` on `texts` and write it to `out` under `name`; returns the loss.

    Sets the threads and the seed of the whole process. Raises ModelError for a model that cannot be
    trained, and UsageError for texts without training data.
    """
    header = read_header(source)
    validate(header)
    adaptable.check(header)
    torch.set_num_threads(n_threads)
    torch.manual_seed(0)
    model = llama.model_of(header, weights.read(header))
    lessons = [lesson for text in texts for lesson in lessons_of(text, model.config.vocab_size)]
    if not lessons:
        raise UsageError(f"the kept texts have tokens that {header.name} does not know")
    loss = train(model, lessons, report)
    weights.write(header, dict(llama.tensors(model)), out, name)
    return loss
