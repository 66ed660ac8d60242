"""Base class of a runtime's options, and their discovery.

Defines no options itself, and imports no model library.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Self

from edgespec.errors import UsageError, setting
from edgespec.extras import entry_points
from edgespec.settings.base import Flag, Role, Settings

if TYPE_CHECKING:
    from edgespec.settings.config import LoadSettings

__all__ = ["ENTRY_POINTS", "Flag", "Role", "RuntimeOptions"]

ENTRY_POINTS = "edgespec.runtimes"
"""Entry point group of runtimes. The module of an entry point may define `OPTIONS`, a subclass of
`RuntimeOptions`. It is imported before any model is opened, so it must import no model library."""


class RuntimeOptions(Settings):
    """The options of one runtime: fields with defaults. Those annotated with a `Flag`
    are flags of the command line, too."""

    kind: ClassVar[str]
    """Noun phrase for its models: `a GGUF model`."""
    roles: ClassVar[Mapping[str, Role]] = MappingProxyType({})
    """Options that are for models in one role; others are for all of the runtime's."""

    @classmethod
    def of(cls, options: RuntimeOptions | None) -> Self:
        """`options` if they are of this class, otherwise the defaults."""
        return options if isinstance(options, cls) else cls()

    def check(self, load: LoadSettings) -> None:
        """Raise UsageError for options that contradict the settings for loading."""

    def draft_on_gpu(self, n_layers: int) -> Mapping[str, Self]:
        """Options with which a GPU computes a draft of `n_layers`, by the flag that says so; none
        where the user placed it already."""
        return {}

    def changed(self, role: Role) -> Iterator[str]:
        """Options of a model in this role that are not at their defaults."""
        for name, field in type(self).model_fields.items():
            if self.roles.get(name, role) == role and getattr(self, name) != field.default:
                yield name


def declared() -> dict[str, type[RuntimeOptions]]:
    """The installed runtimes' options, by the runtime's name."""
    found = {}
    for entry in sorted(entry_points(group=ENTRY_POINTS), key=lambda entry: entry.name):
        with suppress(ImportError):
            found[entry.name] = getattr(import_module(entry.module), "OPTIONS", None)
    return {name: options for name, options in found.items() if options is not None}


def option_names(role: Role | None = None) -> dict[str, str]:
    """The runtime of each option; with `role`, of those that are only for a model in it."""
    return {
        name: runtime
        for runtime, options in declared().items()
        for name in options.model_fields
        if role is None or options.roles.get(name) == role
    }


def refuse_unused(
    options: Mapping[str, RuntimeOptions], models: Mapping[Role, tuple[Path, str]]
) -> None:
    """Raise UsageError for an option that reaches none of the models.

    `models` are their files and the names of their runtimes, by role.
    """
    for runtime, chosen in options.items():
        roles = [role for role, (_, its_runtime) in models.items() if its_runtime == runtime]
        reached = {name for role in roles for name in chosen.changed(role)}
        for role, (path, its_runtime) in models.items():
            for name in {*chosen.changed(role)} - reached:
                named, other = getattr(setting, name), declared().get(its_runtime)
                kind = other.kind if other else f"a model of the runtime {its_runtime}"
                raise UsageError(
                    f"{named(getattr(chosen, name))}: {path.name} is {kind}, and {named} is for "
                    f"{chosen.kind}: leave it out"
                )
