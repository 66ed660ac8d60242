"""Arguments of `load` and `plan`, checked: settings with paths in place of names. Errors about
them, in the caller's words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgespec import extras
from edgespec.engine.settings import EngineSettings
from edgespec.errors import EdgespecError, ModelError
from edgespec.ports import Progress
from edgespec.settings import arguments, hub_reference
from edgespec.settings.base import Names, PythonNames, Settings, spell
from edgespec.settings.config import LoadSettings
from edgespec.settings.draft_name import OWN_DRAFT
from edgespec.settings.options import declared

_FLAG = re.compile(r"(?<![^\s(:])--?[a-z][a-z-]*(?! pip )")


@contextmanager
def in_words_of(caller: LoadSettings | str | Path | Names) -> Iterator[None]:
    """Context manager in which errors, which name flags, name arguments if the caller's settings
    were given in Python."""
    try:
        yield
    except EdgespecError as error:
        names = caller.names if isinstance(caller, LoadSettings) else caller
        names = names if isinstance(names, Names) else PythonNames()
        error.args = (in_words(str(error), names), *error.args[1:])
        raise


def in_words(text: str, names: Names) -> str:
    """A message that names flags, with arguments in their place if `names` are Python's."""
    if not isinstance(names, PythonNames):
        return text
    arguments_of = _names_of_flags()
    return _FLAG.sub(lambda flag: arguments_of.get(flag[0], flag[0]), text)


def _names_of_flags() -> dict[str, str]:
    """Names of settings by their flags."""
    found = {"-m": "model", "-md": "draft", spell("model"): "model", spell("draft"): "draft"}
    found["--chat-template-file"] = "use_chat_template"
    kinds: list[type[Settings]] = [LoadSettings, EngineSettings, *declared().values()]
    for kind in kinds:
        for name, flag in kind.flags():
            found |= {spell(name): name} | ({flag.short: name} if flag.short else {})
    return found


def checked(
    settings: LoadSettings | str | Path,
    engine_settings: EngineSettings | None,
    progress: Progress | None,
    fields: Mapping[str, Any] | None = None,
) -> tuple[LoadSettings, EngineSettings, Progress | None]:
    """The validated arguments. Raises UsageError."""
    if isinstance(settings, str | Path):
        settings = LoadSettings.model_validate({"model": Path(settings), **(fields or {})})
    elif fields:
        settings = arguments.instance("settings", settings, LoadSettings).but(fields)
    if engine_settings is None:
        engine_settings = EngineSettings()
    settings = arguments.instance("settings", settings, LoadSettings)
    found = {"model": _located(settings.model, False, progress)}
    if settings.draft is not None:
        found["draft"] = _located(settings.draft, True, progress)
    settings = settings.model_copy(update=found)
    if settings.draft == OWN_DRAFT:
        from edgespec.session.own_draft import obtain

        settings = settings.model_copy(update={"draft": obtain(settings, progress)})
    engine_settings = arguments.instance("engine_settings", engine_settings, EngineSettings)
    return settings, engine_settings, arguments.callback("progress", progress)


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
