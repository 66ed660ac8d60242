"""Arguments of callers, checked: settings with paths in place of names, and those of texts."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgespec import extras
from edgespec.engine.settings import EngineSettings
from edgespec.errors import ModelError
from edgespec.ports import Progress
from edgespec.settings import arguments, hub_reference
from edgespec.settings.config import LoadFields, LoadSettings, SamplingParams
from edgespec.settings.parsing import OWN_DRAFT


def checked(
    settings: LoadSettings | str | Path,
    engine_settings: EngineSettings | None,
    progress: Progress | None,
    fields: LoadFields | None = None,
) -> tuple[LoadSettings, EngineSettings, tuple[str, ...]]:
    """The validated arguments, and notes about the draft that they name. Raises UsageError."""
    if isinstance(settings, str | Path):
        settings = LoadSettings(model=settings)
    if fields:
        settings = arguments.instance("settings", settings, LoadSettings).but(fields)
    settings = arguments.instance("settings", settings, LoadSettings)
    found = {"model": _located(settings.model, False, progress)}
    if settings.draft is not None:
        found["draft"] = _located(settings.draft, True, progress)
    settings = settings.model_copy(update=found)
    engine_settings = EngineSettings() if engine_settings is None else engine_settings
    engine_settings = arguments.instance("engine_settings", engine_settings, EngineSettings)
    notes: tuple[str, ...] = ()
    if settings.draft == OWN_DRAFT:
        from edgespec.session.own_draft import settled

        settings, notes = settled(settings, progress)
    return settings, engine_settings, notes


def sampling_params(sampling: SamplingParams | None, fields: Mapping[str, Any]) -> SamplingParams:
    """The sampling parameters with these fields in place of their own. Raises UsageError."""
    sampling = SamplingParams() if sampling is None else sampling
    arguments.instance("sampling", sampling, SamplingParams)
    return SamplingParams.model_validate({**dict(sampling), **fields}) if fields else sampling


def _located(path: Path, takes_heads: bool, progress: Progress | None) -> Path:
    """The file of a model that may be given by a name, or by its place on Hugging Face's hub, from
    where it is fetched. Raises ModelError, FetchError and UsageError."""
    name = str(path)
    with suppress(OSError):  # too long for a file's name
        if path == OWN_DRAFT or path.exists():
            return path
    if path.name == name and path.suffix not in (".gguf", ".onnx"):
        from edgespec.models import catalogue

        return catalogue.find(name)
    reference = hub_reference.find(name)
    if reference is None:
        return path
    if reference.quant is None and "hf.co/" not in name and "huggingface.co/" not in name:
        raise ModelError(
            f"{name}: no such file; a repository of Hugging Face is fetched as {name}:QUANT, or as "
            f"hf.co/{name}"
        )
    with extras.needed("hub", "fetching models needs huggingface_hub"):
        from edgespec.hub.fetch import Hub
    return Hub().fetch(replace(reference, takes_heads=takes_heads), progress).path
