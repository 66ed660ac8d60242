"""Validated settings from flags and a config file.

Flags win over the file, which wins over defaults. Nothing is dropped silently.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from edgespec.chat.chat_sampling import chat_sampling
from edgespec.cli import fetching
from edgespec.cli.console import Console
from edgespec.errors import EdgespecError, UsageError, marked, setting
from edgespec.files import cache_folder
from edgespec.files.named_errors import named
from edgespec.files.regular import read_at_most
from edgespec.models import catalogue, packaged
from edgespec.models.embedded import embedded_pair, find_config, shipped_prompts
from edgespec.settings import arguments
from edgespec.settings.base import Settings, expanded, in_flags, key_of
from edgespec.settings.config import (
    DRAFTING,
    GenerateSettings,
    LoadSettings,
    SamplingParams,
    ServerSettings,
    read_config,
)
from edgespec.settings.options import option_names
from edgespec.settings.parsing import OWN_DRAFT, SELF
from edgespec.tracing.spans import OFF, Trace

S = TypeVar("S", bound=Settings)
FindHead = Callable[[Path, int | str], Path | None]
"""Finds a head beside a model for a memory budget."""

MEASURED_SEED = 0
"""Seed of texts that a measurement writes, so that it can be repeated."""
MAX_PROMPT_BYTES = 16 << 20
"""Size limit of a prompt or a file of prompts, larger than any context."""

if TYPE_CHECKING:
    from edgespec.engine.settings import EngineSettings
    from edgespec.session.session import Session


@dataclass(frozen=True, slots=True)
class Spelling:
    """Origin of settings: a file, or flags."""

    file: Path | None = None
    in_file: frozenset[str] = frozenset()

    def spelled(self, text: str) -> str:
        """A message with the names that the user gave."""
        return in_flags(text, self.file, self.in_file)


@dataclass(frozen=True, slots=True)
class CommandSettings:
    """Validated settings of a command, and notes for the user about their origin."""

    load: LoadSettings
    generate: GenerateSettings
    notes: tuple[str, ...] = ()

    @property
    def engine(self) -> EngineSettings:
        """The engine's part of the settings."""
        from edgespec.engine.settings import EngineSettings

        return EngineSettings.of(self.generate)

    @contextmanager
    def opened(
        self, console: Console, template: str | None = None, trace: Trace = OFF
    ) -> Iterator[Session]:
        """Open a session; `template` replaces the model's chat template."""
        from edgespec.session import session

        for note in self.notes:
            console.note(note)
        with session.load(self.load, self.engine, console.progress, trace) as loaded:
            console.end_of_progress()
            for note in loaded.plan.notes:
                console.note(f"note: {marked(note)}")
            if template is not None:
                loaded.use_chat_template(template)
            yield loaded


def settings_from(args: argparse.Namespace, **defaults: str) -> CommandSettings:
    """Settings of a command with models, which are fetched if they are named by -hf or -hfd.

    `defaults` are the command's own, for what neither flags nor a file say.

    Raises UsageError, ModelError and FetchError.
    """
    notes, heads = fetching.fetch_named(args)
    flags = dict(vars(args))
    file, config = of_file(args)
    for source in (flags, config):
        _settle_meanings(source, notes)
    _settle_draft(flags, config, notes, Spelling(file, frozenset(config)))
    settings = defaults | config | flags
    names = Spelling(file, frozenset(config.keys() - flags.keys()))
    heads = heads or fetching.heads_in(settings.get("model"))
    find_head = partial(fetching.head_beside, heads, Console(quiet="quiet" in args), notes)
    _choose_models(settings, notes, names, find_head)
    if settings.get("no_draft"):  # the target alone, unless a flag says otherwise
        settings.setdefault("lookup", False)
    if settings.get("draft") is None and settings.get("lookup") is False:
        _drop(DRAFTING & config.keys() - flags.keys(), settings, notes)
    load = _validated(settings, LoadSettings, names)
    generate = _validated(settings, GenerateSettings, names)
    if load.draft == OWN_DRAFT:
        load = fetching.with_own_draft(load, Console(quiet="quiet" in args), notes)
    return CommandSettings(load, generate, tuple(notes))


def of_file(args: argparse.Namespace) -> tuple[Path | None, dict[str, Any]]:
    """The config file and its settings. Raises UsageError."""
    file = find_config(args.config) if "config" in args else None
    return file, read_config(file) if file else {}


def server_settings(args: argparse.Namespace) -> ServerSettings:
    """Settings of a server, from flags and the config file. Raises UsageError."""
    file, config = of_file(args)
    names = Spelling(file, frozenset(config.keys() - vars(args).keys()))
    return _validated(config | vars(args), ServerSettings, names)


def with_drafts_of(
    args: argparse.Namespace, console: Console
) -> tuple[CommandSettings, tuple[Path, ...]]:
    """Settings of a command that compares drafts, and all of its drafts; writes notes."""
    named = list(dict.fromkeys(getattr(args, "draft", ())))
    if named:
        args.draft = named[0]
    command = settings_from(args)
    notes, drafts = [*command.notes], [command.load.draft]
    for name in named[1:]:
        is_own = name == SELF
        made = fetching.with_own_draft(command.load, console, notes).draft if is_own else None
        drafts.append(made if is_own else model_path(name))
    for note in notes:
        console.note(note)
    return command, tuple(path for path in dict.fromkeys(drafts) if path)


def model_path(args: str | Path, named: str = "--model") -> Path:
    """Path of a model given as a path or a name of the catalogue.

    A path that does not exist is returned as it is; opening it will fail. Raises UsageError for a
    URL or a hub's repository, ModelError for an unknown name.
    """
    if isinstance(args, Path):
        return args
    found = catalogue.lookup(args)
    if found is not None:
        return found
    if hint := catalogue.hint(args):
        raise UsageError(f"{named} {hint}")
    path = expanded(args)
    return path if path.name != args or path.suffix else catalogue.find(args)


def read_prompt(args: argparse.Namespace) -> str:
    """The prompt from a flag, a file or a pipe, exactly as given. Raises UsageError."""
    if "prompt" in args and "file" in args:
        raise UsageError("give either --prompt or --file, not both")
    if "prompt" in args:
        prompt, source = str(args.prompt), "--prompt"
    elif "file" in args:
        source = f"--file {args.file}"
        prompt = _read(Path(args.file), source)
    elif sys.stdin is not None and not sys.stdin.isatty():  # None if it is closed
        source = "stdin"
        with named(source):
            prompt = read_at_most(sys.stdin.buffer, source, MAX_PROMPT_BYTES).decode("utf-8-sig")
    else:
        raise UsageError("no prompt given: use -p TEXT or -f FILE, or pipe text to stdin")
    if not prompt:
        raise UsageError(f"the prompt from {source} is empty: give -p TEXT or -f FILE")
    return prompt


def measured_sampling(target: Path, temperature: float | None) -> SamplingParams:
    """Sampling of texts that a measurement writes: what `chat` uses, at this temperature."""
    from edgespec import registry

    given = {} if temperature is None else {"temperature": temperature}
    return GenerateSettings.model_validate(given).sampling(
        MEASURED_SEED, chat_sampling(registry.describe(target).sampling)
    )


def read_prompts(file: Path | None = None) -> list[str]:
    """The prompts in a file: one per line, or in a .jsonl file the key `prompt` of each object.

    Without a file, those that come with edgespec. Raises UsageError.
    """
    path = file or shipped_prompts()
    lines = re.split("\r?\n", _read(path, f"--prompts {path}"))
    prompts = [
        _prompt_of(line, f"--prompts {path}, line {number}") if path.suffix == ".jsonl" else line
        for number, line in enumerate(lines, 1)
        if line.strip()
    ]
    if not prompts:
        raise UsageError(f"--prompts {path}: it has no prompt")
    return prompts


def _read(path: Path, source: str) -> str:
    with named(source), path.open("rb") as file:  # may be a pipe
        return read_at_most(file, path, MAX_PROMPT_BYTES).decode("utf-8-sig")


def _prompt_of(line: str, source: str) -> str:
    """The prompt in a line of JSON."""
    try:
        content = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{source} is not JSON: {error}") from error
    prompt = content.get("prompt") if isinstance(content, dict) else None
    if not isinstance(prompt, str) or not prompt:
        raise UsageError(f'{source} is not an object with a text "prompt"')
    return arguments.text(f'{source}: its "prompt"', prompt)


def _settle_meanings(settings: dict[str, Any], notes: list[str]) -> None:
    """Translate llama.cpp's special numbers: seed -1 is random, --draft-max 0 means no draft."""
    if str(settings.get("seed")) == "-1":
        settings["seed"] = None
    if str(settings.get("draft_max")) == "0":
        del settings["draft_max"]
        settings["no_draft"] = True
        if settings.pop("draft", None) is not None:
            notes.append("no draft is loaded, because --draft-max is 0")


def _settle_draft(
    flags: dict[str, Any], config: dict[str, Any], notes: list[str], in_config: Spelling
) -> None:
    """Resolve contradictions about the draft; flags win over the config file."""
    for settings, names in ((flags, Spelling()), (config, in_config)):
        if settings.get("no_draft") and "draft" in settings:
            said = f"{setting.no_draft} contradicts {setting.draft}: leave one of them out"
            raise UsageError(names.spelled(said))
    if flags.get("no_draft"):
        _drop({"draft", *option_names("draft")} & config.keys(), config, notes)
    if "draft" in flags:
        config.pop("no_draft", None)


def _choose_models(
    settings: dict[str, Any], notes: list[str], names: Spelling, find_head: FindHead
) -> None:
    for role in ("model", "draft"):
        if role == "draft" and settings.get(role) == SELF:
            settings[role] = OWN_DRAFT
        elif role in settings:
            settings[role] = _named_in(names, role, settings[role])
    if "model" in settings:
        if not any(settings.get(name) for name in ("draft", "no_draft")):
            _add_own_draft(settings, notes, find_head)
        return
    if "draft" in settings:
        said = f"{setting.draft} needs the model it drafts for: name it with {setting.model}"
        raise UsageError(names.spelled(said))
    pair = embedded_pair()
    settings["model"] = pair.target
    if not settings.get("no_draft"):
        settings["draft"] = pair.draft


def _add_own_draft(settings: dict[str, Any], notes: list[str], find_head: FindHead) -> None:
    """Use the draft that was made from the model and paid, comes with it, or stands beside it."""
    model, budget = settings["model"], settings.get("memory_budget", "auto")
    if not isinstance(model, Path) or not isinstance(budget, int | str):
        return  # reported when settings are made of them
    made = _made_before(model, budget, settings.get("read_limit"))
    draft = made or own_draft(model) or find_head(model, budget)
    if draft is None:
        return
    settings["draft"] = draft
    # who gives settings of the draft asks for it
    about_drafts = DRAFTING | option_names("draft").keys()
    settings["optional_draft"] = not settings.keys() & about_drafts
    if draft == model:
        notes.append(
            f"{model.name} has a layer of its own that guesses (MTP) where memory and settings let "
            "it: --no-draft does without"
        )
    else:
        notes.append(
            f"{draft.stem} guesses for {packaged.named(model) or model.stem} where that pays: "
            "--no-draft does without"
        )


def own_draft(model: Path) -> Path | None:
    """The draft or head of a fetched model, or the model itself if it has layers for guessing."""
    if (name := packaged.named(model)) and (draft := packaged.draft_of(name)):
        return draft
    from edgespec import registry

    try:
        return model if registry.find(model).guesses_itself(model) else None
    except EdgespecError:
        return None  # reported when it is opened


def _made_before(model: Path, *conditions: Any) -> Path | None:
    """The draft that `-md self` made of the model for such a budget and limit of reads."""
    if not any(cache_folder.folder().glob("*-self-*.gguf")):
        return None
    from edgespec.session import own_draft

    try:
        return own_draft.kept(model, *conditions)
    except EdgespecError:
        return None  # reported when it is opened


def _named_in(names: Spelling, role: str, args: Any) -> Any:
    """The path of a model; in a config file, a path that does not exist may be a name."""
    if role not in names.in_file or names.file is None:
        named = names.spelled(getattr(setting, role))
        return model_path(args, named) if isinstance(args, str | Path) else args
    if isinstance(args, Path) and not args.exists() and args.parent == names.file.parent:
        return catalogue.lookup(args.name) or args
    return args


def _drop(names: Iterable[str], settings: dict[str, Any], notes: list[str]) -> None:
    for name in sorted(names):
        del settings[name]
        notes.append(f"{key_of(name)} of the --config file is not used: there is no draft")


def _validated(settings: dict[str, Any], of: type[S], names: Spelling) -> S:
    known = {name: value for name, value in settings.items() if name in of.known()}
    try:
        return of.model_validate(known)
    except UsageError as error:
        raise UsageError(names.spelled(error.message)) from error
