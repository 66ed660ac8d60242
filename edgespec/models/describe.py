"""Describes a model: its architecture, its files and the fingerprint of its vocabulary.

The model's runtime reads headers and no weights.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from edgespec import registry
from edgespec.errors import BudgetError, ModelError
from edgespec.models import packaged
from edgespec.models.catalogue import KnownModel, cached, embedded, files_of, known
from edgespec.registry import ModelRequest, vocabulary_fingerprint
from edgespec.values import ModelDetails, ModelInfo


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """Everything known about a model without running it."""

    path: Path
    info: ModelInfo
    details: ModelDetails
    fingerprint: str
    """Fingerprint of the vocabulary: models with the same one can form a pair."""
    files: tuple[Path, ...]
    known: KnownModel | None
    """Entry of the manifest or the cache."""

    @property
    def size_bytes(self) -> int:
        return sum(file.stat().st_size for file in self.files)

    @property
    def licence(self) -> str | None:
        return self.details.licence or (self.known.licence if self.known else None)


def describe(path: Path) -> ModelDescription:
    """Describe the model at `path`, a file or a folder. Raises ModelError."""
    details = registry.describe(path)
    info, fingerprint = details.info, details.fingerprint
    if info is None or fingerprint is None:
        info, fingerprint = _prepared(path)
    model = known(path)
    files = model.files if model else tuple(details.files or files_of(path))
    return ModelDescription(path, info, details, fingerprint, files, model)


def _prepared(path: Path) -> tuple[ModelInfo, str]:
    """Info and vocabulary fingerprint of a model, by preparing it as for loading."""
    request = ModelRequest(
        path=path, owner="draft", ctx_size=0, max_nodes=1, max_branches=1, n_threads=1
    )
    with closing(registry.find(path).prepare(request)) as prepared:
        return prepared.info, vocabulary_fingerprint(prepared.tokens())


def listing(more: Iterable[KnownModel] = ()) -> list[KnownModel]:
    """Models embedded, cached, `more`, and those to fetch by name, described. Raises ModelError."""
    listed = embedded()
    for model in (*cached(), *more):
        try:
            details = registry.describe(model.path)
        except (BudgetError, ModelError) as error:
            listed.append(replace(model, problem=error.message))
            continue
        listed.append(
            replace(
                model,
                quantization=details.quantization,
                parameters=details.parameters,
                licence=details.licence,
                chats=details.chats,
            )
        )
    return [*listed, *_not_fetched({model.name for model in listed})]


def _not_fetched(here: Collection[str]) -> list[KnownModel]:
    """Packaged models that `edgespec models pull` can fetch."""
    return [
        KnownModel(
            name=name,
            path=packaged.cache_path(name),
            files=(),
            format="gguf",
            quantization=model.quantization,
            parameters=model.parameters,
            licence=model.licence,
            to_fetch_bytes=model.size_bytes,
        )
        for name, model in packaged.models().items()
        if name not in here
    ]
