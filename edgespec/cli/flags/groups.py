"""Groups of flags that several commands share."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace, _ArgumentGroup
from collections.abc import Mapping
from enum import StrEnum
from textwrap import wrap
from types import MappingProxyType
from typing import Any, TypeVar, get_origin

from edgespec.chat.chat_sampling import DEFAULTS as CHAT_DEFAULTS
from edgespec.settings.base import Settings, key_of, spell
from edgespec.settings.config import (
    GenerateSettings,
    LoadSettings,
    Sampling,
    ServerSettings,
    Speculation,
)
from edgespec.settings.options import declared

S = TypeVar("S", bound=Settings)

HUB_NAME = "USER/REPO[:QUANT]"
OR_FILE = "@FILE reads it from a file"


def flag(group: _ArgumentGroup | ArgumentParser, spelling: str, text: str, **more: Any) -> None:
    """Add a flag that is no setting, such as `-p --port N`; without a placeholder it is a switch.

    `text` is its help, and `more` are arguments of `add_argument`.
    """
    words = spelling.split(" ")
    flags = [word for word in words if word.startswith("-")]
    placeholder = " ".join(words[len(flags) :])
    given = {"metavar": placeholder} if placeholder else {"action": "store_true"}
    group.add_argument(*flags, help=text.replace("%", "%%"), **given | more)


def add_models(parser: ArgumentParser, several: bool = False, several_drafts: bool = False) -> None:
    """Flags for models; with `several` or `several_drafts`, more than one target or draft may be
    given, or folders of targets."""
    group = parser.add_argument_group("models")
    flag(
        group,
        "-m --model FILE",
        "target model: a GGUF file, an ONNX model's folder, or a name from `edgespec models "
        "list` (default: the pair that comes with edgespec)"
        + ("; may be given several times: requests name the one that they want" if several else ""),
        action="append" if several else "store",
    )
    if several:
        flag(
            group,
            "--models-dir DIR",
            "folder of models, of which requests name one; each is loaded when it is asked for",
        )
    flag(
        group,
        "-md --model-draft FILE",
        "draft model: a small one of the same family, which guesses; self makes one from the "
        "target where that pays, and keeps it in the cache (default: with -m one that comes with "
        "the target or was made from it, or a head that stands beside it)"
        + ("; may be given several times to find the best one" if several_drafts else ""),
        action="append" if several_drafts else "store",
        dest="draft",
    )
    flag(
        group,
        f"-hf --hf-repo {HUB_NAME}",
        "download the target from Hugging Face, once (QUANT: Q4_K_M, otherwise the first)",
    )
    flag(group, f"-hfd --hf-repo-draft {HUB_NAME}", "download the draft from Hugging Face, once")
    flag(group, "--no-draft", "use no draft model")
    flag(
        group,
        "--config FILE",
        "TOML file of settings, or the name of a preset; keys are the settings' names, and "
        "flags take precedence",
    )


def add_memory(parser: ArgumentParser) -> None:
    """Flags for memory, context and threads, and those that runtimes declare."""
    group = parser.add_argument_group("memory and speed")
    add(group, LoadSettings, "memory_budget", "ctx_size", "batch_size", "threads", "read_limit")
    for options in declared().values():
        if any(options.flags()):
            add(parser.add_argument_group(f"for {options.kind}"), options)


def add_texts(parser: ArgumentParser) -> None:
    """Flags of commands that write texts: kept prompts, and guesses."""
    group = parser.add_argument_group("texts")
    add(group, LoadSettings, "prompt_cache")
    add(group, Speculation)


def add_parallel(parser: ArgumentParser, default: str = "1") -> None:
    group = parser.add_argument_group("several texts")
    add(group, LoadSettings, "n_parallel", defaults={"n_parallel": default})


def add_sampling(parser: ArgumentParser, chats: bool = False, serves: bool = False) -> None:
    """Flags for sampling. With `chats`, defaults are those that the model's authors recommend; with
    `serves`, the flags are such defaults for requests, and limit their answers."""
    group = parser.add_argument_group("sampling" + " where a request does not say" * serves)
    recommended = {
        name: f"the model's own, otherwise {value}" for name, value in CHAT_DEFAULTS.items()
    }
    defaults = recommended | {"max_tokens": "-1"} if chats or serves else {}
    limits = parser.add_argument_group("limits of answers") if serves else group
    add(limits, GenerateSettings, "max_tokens", defaults=defaults)
    add(group, Sampling, defaults=defaults)
    add(group, GenerateSettings, "seed", *(() if serves else ("stop",)), defaults=defaults)


def add_grammar(parser: ArgumentParser) -> None:
    """Flags that constrain the text by a JSON schema or a grammar."""
    group = parser.add_argument_group("structured output")
    flag(group, "--json-schema JSON", f"write JSON that fits this schema; {{}} is any; {OR_FILE}")
    flag(group, "--grammar TEXT", f"write text of this Lark grammar of llguidance's; {OR_FILE}")


def add_chat_template(parser: ArgumentParser) -> None:
    """The flag that chooses a chat template instead of the model's own."""
    flag(
        parser.add_argument_group("chat template"),
        "--chat-template TEXT",
        f"Jinja, or chatml, instead of the model's own template; {OR_FILE}",
    )


def add(
    group: _ArgumentGroup | ArgumentParser,
    settings: type[Settings],
    *names: str,
    defaults: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Add the flags of settings that say how they are spelled, of all or of those named.

    Help texts are the settings' docstrings; `defaults` replaces the defaults that they show.
    """
    flags = dict(settings.flags())
    for name in names or flags:
        spelled, annotation = flags[name], settings.model_fields[name].annotation
        given: dict[str, Any] = {"action": "store_true"}
        if spelled.metavar:
            repeats = get_origin(annotation) in (tuple, Mapping)
            given = {"metavar": spelled.metavar, "action": "append" if repeats else "store"}
        text = spelled.help or _described(settings, name, defaults.get(name))
        short = [spelled.short] if spelled.short else []
        # argparse formats the text
        group.add_argument(*short, spell(name), dest=name, help=text.replace("%", "%%"), **given)


def _described(settings: type[Settings], name: str, default: str | None) -> str:
    """Help text of a setting: its docstring, the rules that it chooses from, and its default."""
    field = settings.model_fields[name]
    text = " ".join((field.description or "").split())
    text = (text[:1].lower() + text[1:]).removesuffix(".")
    text, _, usual = text.partition(". Default: ")
    if isinstance(field.annotation, type) and issubclass(field.annotation, StrEnum):
        text += f": {', '.join(field.annotation)}"
    if field.default is False:
        usual = usual or "off"
    elif isinstance(field.default, int | float | str):
        usual = usual or str(field.default)
    usual = default or usual
    return f"{text} (default: {usual})" if usual else text


def keys_of_files() -> str:
    """The settings that have no flag: what a --config file may say besides flags' names."""
    kinds: tuple[type[Settings], ...] = (
        LoadSettings,
        GenerateSettings,
        ServerSettings,
        *declared().values(),
    )
    lines = ["", "keys of a --config file besides the flags' names:"]
    for kind in kinds:
        flags = {*dict(kind.flags()), "model", "draft", "no_draft", "options"}
        for name, field in kind.model_fields.items():
            if name not in flags and field.repr:
                text = f"{key_of(name)}: {_described(kind, name, None)}"
                lines += wrap(text, 78, initial_indent="  ", subsequent_indent="      ")
    return "\n".join(lines) + "\n"


def add_output(parser: ArgumentParser) -> _ArgumentGroup:
    group = parser.add_argument_group("output")
    flag(group, "--json", "print one JSON object on stdout")
    return group


def add_plain_output(parser: ArgumentParser) -> None:
    """The flags of commands that print one report."""
    flag(parser, "--json", "print one JSON object on stdout")
    flag(parser, "--quiet", "print no notes or progress")


def given(args: Namespace, settings: type[S], **more: object) -> S:
    """Settings of a command, from the flags that were given and `more`. Raises UsageError."""
    flags = {name: value for name, value in vars(args).items() if name in settings.known()}
    return settings.model_validate(flags | more)
