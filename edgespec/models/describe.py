"""Says what a model is: its shape, its files, and what its vocabulary can be compared by.

Asks the model's runtime, which reads headers and no weights; weights are read for checksums only.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from edgespec import runtimes
from edgespec.errors import ModelError
from edgespec.models import packaged
from edgespec.models.catalogue import (
    KnownFile,
    KnownModel,
    cached,
    embedded,
    files_of,
    hashed,
    known,
)
from edgespec.ports import Progress
from edgespec.runtimes import ModelRequest, vocabulary_fingerprint
from edgespec.values import ModelDetails, ModelInfo


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """All that can be said about a model without running it."""

    path: Path
    info: ModelInfo
    details: ModelDetails
    fingerprint: str
    """Fingerprint of the vocabulary: models that have it in common form pairs."""
    files: tuple[KnownFile, ...]
    known: KnownModel | None
    """Entry of the manifest or the cache."""

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes or 0 for file in self.files)

    @property
    def licence(self) -> str | None:
        return self.details.licence or (self.known.licence if self.known else None)


def describe(path: Path, progress: Progress | None = None) -> ModelDescription:
    """Describe the model at `path`, a file or a folder. Raises ModelError."""
    details = runtimes.describe(path)
    info, fingerprint = details.info, details.fingerprint
    if info is None or fingerprint is None:
        info, fingerprint = _prepared(path)
    model = known(path)
    files = model.files if model else [KnownFile(file) for file in details.files or files_of(path)]
    return ModelDescription(path, info, details, fingerprint, hashed(files, progress), model)


def _prepared(path: Path) -> tuple[ModelInfo, str]:
    """Shape and vocabulary of a model as those know it who would run it."""
    request = ModelRequest(
        path=path, owner="draft", ctx_size=0, max_nodes=1, max_branches=1, n_threads=1
    )
    prepared = runtimes.find(path).prepare(request)
    try:
        return prepared.info, vocabulary_fingerprint(prepared.tokens())
    finally:
        prepared.close()


def listing(hash_cached: bool = False, progress: Progress | None = None) -> list[KnownModel]:
    """The embedded models, held against the manifest, the cached ones, and those that can be
    fetched by name. Raises ModelError."""
    listed = [replace(model, files=hashed(model.files, progress)) for model in embedded()]
    for model in cached():
        files = hashed(model.files, progress) if hash_cached else model.files
        try:
            details = runtimes.describe(model.path)
        except ModelError as error:
            listed.append(replace(model, files=files, problem=str(error)))
            continue
        listed.append(
            replace(
                model,
                files=files,
                quantization=details.quantization,
                parameters=details.parameters,
                licence=details.licence,
            )
        )
    return [*listed, *_not_fetched({model.name for model in listed})]


def _not_fetched(here: Collection[str]) -> list[KnownModel]:
    """Models of packages that `edgespec models pull` could fetch."""
    return [
        KnownModel(
            name=name,
            path=packaged.place_of(name),
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
