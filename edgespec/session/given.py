"""Arguments of `load` and `plan`, checked: settings with paths in place of names. Errors about
them, in the caller's words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from edgespec.engine.settings import EngineSettings
from edgespec.errors import EdgespecError
from edgespec.ports import Progress
from edgespec.settings import arguments
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
) -> tuple[LoadSettings, EngineSettings, Progress | None]:
    """The validated arguments. Raises UsageError."""
    if isinstance(settings, str | Path):
        settings = LoadSettings(model=Path(settings))
    if engine_settings is None:
        engine_settings = EngineSettings()
    settings = arguments.instance("settings", settings, LoadSettings)
    settings = _with_paths(settings)
    if settings.draft == OWN_DRAFT:
        from edgespec.session.own_draft import obtain

        settings = settings.model_copy(update={"draft": obtain(settings, progress)})
    engine_settings = arguments.instance("engine_settings", engine_settings, EngineSettings)
    return settings, engine_settings, arguments.callback("progress", progress)


def _with_paths(settings: LoadSettings) -> LoadSettings:
    """The settings with paths where models are given by names. Raises ModelError."""
    given = {"model": settings.model, "draft": settings.draft}
    found = {role: path for role, path in given.items() if path and path != OWN_DRAFT}
    named = {role: path for role, path in found.items() if _is_name(path)}
    if not named:
        return settings
    from edgespec.models import catalogue

    paths = {role: catalogue.find(str(name)) for role, name in named.items()}
    return settings.model_copy(update=paths)


def _is_name(path: Path) -> bool:
    if path.name != str(path) or path.suffix in (".gguf", ".onnx"):
        return False
    with suppress(OSError):  # too long for a file's name
        return not path.exists()
    return True
