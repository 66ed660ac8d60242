"""The models of a server: names and kinds, what they need, how each is loaded.

One list for the page and the routes; the models share one budget.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgespec import registry
from edgespec.cli.console import Console
from edgespec.cli.invocation import CommandSettings, model_path, of_file, settings_from
from edgespec.completions.protocols.model_names import HostedModel
from edgespec.completions.request_limits import EMBEDDING_BODY_BYTES, max_body_bytes, serving_bytes
from edgespec.errors import EdgespecError, ModelError, UsageError, marked
from edgespec.files import gguf_names
from edgespec.memory import heap, process
from edgespec.memory.division import HEADROOM_SHARE
from edgespec.models import model_files
from edgespec.settings.base import in_flags
from edgespec.settings.config import DEFAULT_CTX_SIZE

if TYPE_CHECKING:
    from edgespec.memory.budget import MemoryPlan
    from edgespec.ports import Progress
    from edgespec.session.embedder import Embedder
    from edgespec.session.session import Session


PARALLEL = "auto"
"""The default number of texts at once."""
MOST_BESIDE = 0.25
"""Largest share of the budget that is kept for embedding models beside another model."""
SPARE = 1.05
"""Factor of what models need together, so that each is planned as it was alone."""


@dataclass(slots=True, eq=False)
class ListedModel(HostedModel):
    """A model that the user named, or one of a folder."""

    path: Path = Path()
    room_bytes: int = 0
    """Bytes of the model besides the process, with all of its weights in memory, or of its room if
    it stays; 0 if unknown."""


def is_one(args: argparse.Namespace) -> bool:
    """True if there is one model, which writes texts; `args.model` is no list then."""
    typed = getattr(args, "model", [])
    if "models_dir" in args or len(typed) > 1:
        if "hf_repo" in args:
            raise UsageError("-hf names one model, and -m others: fetch it, and name it with -m")
        return False
    config = {} if "hf_repo" in args else of_file(args)[1]
    named = typed[0] if typed else config.get("model")
    path = model_path(named) if isinstance(named, str | Path) else Path()
    if path.suffix == ".gguf" and path.exists() and registry.find(path).embeds(path):
        args.model = [named]
        return False
    if typed:
        args.model = named
    return True


def for_requests(settings: CommandSettings, body_bytes: int) -> CommandSettings:
    """The settings with memory for requests of at most `body_bytes`; 0 is what the context may
    need."""
    reserve = serving_bytes(body_bytes or max_body_bytes(0))
    of_token = 0 if body_bytes else serving_bytes(max_body_bytes(1)) - reserve
    update = {"reserve": settings.load.reserve + reserve, "reserve_of_token": of_token}
    return replace(settings, load=settings.load.model_copy(update=update))


class ModelList:
    """The models of a command line, each with the settings of its flags."""

    def __init__(
        self,
        args: argparse.Namespace,
        console: Console,
        template: str | None,
        **defaults: str,
    ) -> None:
        """Find the models. Raises UsageError and ModelError."""
        self._args = args
        self._console = console
        self._template = template
        self._defaults = defaults
        self._settings: dict[str, CommandSettings] = {}
        self._given: dict[str, int | str] = {}
        """The budget that `keep_budget` was told."""
        for flag, name in (("-md", "draft"), ("-hfd", "hf_repo_draft")):
            if name in args:
                raise UsageError(
                    f"{flag} names something of one model, and there are several: leave it out"
                )
        found = dict(self._found())
        if not found:
            raise UsageError(
                f"--models-dir {args.models_dir}: there are no models in it: name another"
            )
        self.models = tuple(ListedModel(name, path=path) for name, path in found.items())
        for look in (self._look_at_kind, self._look_at_needs):
            for n_done, model in enumerate(self.models):
                console.progress("looking at models", n_done / len(self.models))
                self._try(look, model)
        self._give_rooms()

    @property
    def first(self) -> ListedModel | None:
        """The model that is loaded at the beginning: the first that -m names."""
        return self.models[0] if "model" in self._args else None

    def settings(self, model: ListedModel) -> CommandSettings:
        """The settings of a model, those of the flags with its path."""
        if model.name not in self._settings:
            given = vars(self._args) | {"model": model.path}
            if model.embeds:
                given["no_draft"] = True
            settings = settings_from(argparse.Namespace(**given), **self._defaults)
            self._settings[model.name] = for_requests(settings, self.body_bytes)
        return self._settings[model.name]

    @cached_property
    def body_bytes(self) -> int:
        """Size limit of a request's body, the same for all models."""
        if given := getattr(self._args, "body_bytes", 0):
            return int(given)
        n_ctx = int(getattr(self._args, "ctx_size", 0) or DEFAULT_CTX_SIZE)
        least = EMBEDDING_BODY_BYTES if any(m.embeds for m in self.models) else 0
        return max(least, max_body_bytes(n_ctx))

    def _give_rooms(self) -> None:
        """Choose the models that stay, and their rooms: all if the budget holds them and not just
        one writes, otherwise embedding models in a part of it that any other one leaves."""
        usable = [model for model in self.models if model.error is None]
        if len(usable) < 2:
            return
        writing = [model for model in usable if not model.embeds]
        budget = process.resolve_budget(self.settings(usable[0]).load.memory_budget)
        # a plan's headroom has a share of the models that are already in the process
        free = int((1 - HEADROOM_SHARE) * budget) - process.footprint_bytes()
        needed = sum(model.room_bytes for model in usable)
        if len(writing) != 1 and SPARE * needed <= free:
            for model in usable:
                model.stays, model.room_bytes = True, free * model.room_bytes // needed
            return
        most = int(budget / SPARE) - max((one.smallest_bytes for one in writing), default=budget)
        left = min(most, int(MOST_BESIDE * budget))
        for model in usable:
            model.stays = model.embeds and model.room_bytes <= left
            left -= model.room_bytes * model.stays

    def load(self, model: ListedModel, progress: Progress) -> Session | Embedder:
        """The loaded model. Raises the errors of `edgespec.load`."""
        from edgespec.session import embedder, session

        heap.trim_heap()
        settings = self.settings(model)
        base_bytes = process.footprint_bytes()
        in_room = {"memory_budget": int((1 + HEADROOM_SHARE) * base_bytes) + model.room_bytes}
        rooms = sum(one.room_bytes for one in self.models if one.stays and one.served is None)
        in_turn = {**self._given, "reserve": settings.load.reserve + rooms}
        load = settings.load.model_copy(update=in_room if model.stays else in_turn)
        if model.embeds:
            return embedder.load_embedder(load, progress)
        loaded = session.load(load, settings.engine, progress)
        for note in loaded.plan.notes:
            self._console.note(f"note: {marked(note)}")
        loaded.use_chat_template(self._template)
        return loaded

    def keep_budget(self, budget: int | str) -> None:
        """Load models that take turns with another budget from now on."""
        self._given["memory_budget"] = budget

    def _found(self) -> Iterator[tuple[str, Path]]:
        """Names and paths, those of -m first."""
        typed: Sequence[Any] = getattr(self._args, "model", ())
        seen: dict[str, Path] = {}
        for one in typed:
            path, name = model_path(one), Path(one).name
            if name in seen:
                raise UsageError(f"-m {one}: {seen[name]} has the name {name}, too: rename one")
            seen[name] = path
            yield name, path
        if "models_dir" in self._args:
            for path in _models_in(Path(self._args.models_dir)):
                name = path.stem if path.suffix == ".gguf" else path.name
                if name not in seen and path not in seen.values():
                    yield name, path

    def _try(self, look: Callable[[ListedModel], None], model: ListedModel) -> None:
        """Look at a model; one that cannot be used is listed with the reason, but for the first."""
        if model.error is not None:
            return
        try:
            look(model)
        except (EdgespecError, OSError) as error:
            if model is self.first:
                raise
            model.error, model.is_unusable = in_flags(marked(error)), True
            self._console.note(f"note: {model.name} cannot be loaded: {model.error}")
        finally:
            heap.trim_heap()

    def _look_at_kind(self, model: ListedModel) -> None:
        model.embeds = registry.find(model.path).embeds(model.path)
        model.size_bytes = model_files.size_of(model.path)

    def _look_at_needs(self, model: ListedModel) -> None:
        settings = self.settings(model)
        plan = _planned(settings, model.embeds)
        model.smallest_bytes = plan.smallest_bytes
        model.room_bytes = plan.planned_bytes - plan.rows[0].nbytes + 2 * process.STEP_BYTES
        budget_bytes = process.resolve_budget(settings.load.memory_budget)
        if plan.smallest_bytes > budget_bytes:  # raises, unless a shorter context fits
            model.smallest_bytes = _plan(settings, model.embeds, n_parallel=1).smallest_bytes


def _plan(settings: CommandSettings, embeds: bool, **changes: Any) -> MemoryPlan:
    from edgespec.session import embedder, session

    load = settings.load.model_copy(update=changes)
    return embedder.plan_embedder(load) if embeds else session.plan(load, settings.engine)


def _planned(settings: CommandSettings, embeds: bool) -> MemoryPlan:
    """The plan of a model with all weights in memory."""
    load = settings.load
    n_texts = 1 if load.n_parallel == "auto" else load.n_parallel
    ample = {"memory_budget": _PLENTY, "n_parallel": n_texts}
    plan = _plan(settings, embeds, **ample)
    if embeds or load.ctx_size or plan.ctx_size <= DEFAULT_CTX_SIZE:
        return plan
    # a longer context is for memory that is left
    return _plan(settings, embeds, **ample, ctx_size=DEFAULT_CTX_SIZE)


_PLENTY = 1 << 44
"""A budget for everything."""


def _models_in(folder: Path) -> Iterator[Path]:
    """The models of a folder: GGUF files, and folders that a runtime recognises."""
    if not folder.is_dir():
        raise UsageError(f"--models-dir {folder} is not a folder")
    entries = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    found = {files[0] for files in gguf_names.models(path.name for path in entries).values()}
    for path in entries:
        if path.name in found:
            yield path
        elif path.is_dir():
            with suppress(UsageError, ModelError):  # none, or several, of which none is meant
                inside = gguf_names.in_folder(path)
                registry.find(inside)
                yield inside
