"""Groups of flags that several commands share."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace, _ArgumentGroup
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, TypeVar, get_origin

from pydantic import BeforeValidator

from edgespec.chat.chat_sampling import DEFAULTS as CHAT_DEFAULTS
from edgespec.settings.base import Flag, Settings, in_flags, spell
from edgespec.settings.config import (
    ContextEnd,
    GenerateSettings,
    LoadSettings,
    Sampling,
    Speculation,
)
from edgespec.settings.options import declared
from edgespec.settings.rule_names import RuleName
from edgespec.settings.units import parse_size

S = TypeVar("S", bound=Settings)

HUB_NAME = "USER/REPO[:QUANT]"
NO_DEFAULTS: Mapping[str, str] = MappingProxyType({})


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
        **({"action": "append"} if several else {}),
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
        "target, once, and keeps it in the cache (default: with -m one that comes with the "
        "target or was made from it)"
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
    add(group, LoadSettings, "memory_budget", "ctx_size", "batch_size", "ctx_size_draft")
    add(group, LoadSettings, "threads", "threads_draft", "read_limit")
    add(group, LoadSettings, "gpu_memory_budget")
    for options in declared().values():
        group = parser.add_argument_group(f"for {options.kind}")
        add(group, options)


def add_context(parser: ArgumentParser) -> None:
    """Flags for texts that exceed the context."""
    group = parser.add_argument_group("at the context's end")
    add(group, ContextEnd)


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
    add(group, GenerateSettings, *Sampling.model_fields, "seed", defaults=defaults)
    if not serves:
        add(group, GenerateSettings, "stop")


def add_speculation(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("speculation (changes no text, but for --acceptance)")
    add(group, Speculation)
    add_no_lookup(group)


def add_grammar(parser: ArgumentParser) -> None:
    """Flags that constrain the text by a JSON schema, a grammar or a regular expression."""
    group = parser.add_argument_group("structured output")
    flag(group, "--json-schema JSON", "write JSON that fits this schema; {} is any JSON value")
    flag(group, "--json-schema-file FILE", "the same, from a file")
    flag(group, "--grammar TEXT", "write text of this Lark grammar, in llguidance's dialect")
    flag(group, "--grammar-file FILE", "the same, from a file")
    flag(group, "--regex TEXT", "write text that matches this regular expression as a whole")


def add_prompt_cache(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("prompt cache")
    add(group, LoadSettings, "prompt_cache", "prompt_cache_size")


def add_chat_template(parser: ArgumentParser) -> None:
    """Flags that choose a chat template instead of the model's own, spelled as in llama.cpp."""
    group = parser.add_argument_group("chat template")
    flag(
        group,
        "--chat-template TEXT",
        "Jinja or, for GGUF models, a name that llama.cpp knows (chatml, llama3, ...), instead "
        "of the model's own template",
    )
    flag(group, "--chat-template-file FILE", "the same, from a UTF-8 file")


def add_no_lookup(group: _ArgumentGroup) -> None:
    """The flag that leaves guessing to a draft model."""
    flag(group, "--no-lookup", "only a draft model guesses", action="store_false", dest="lookup")


def add(
    group: _ArgumentGroup | ArgumentParser,
    settings: type[Settings],
    *names: str,
    defaults: Mapping[str, str] = NO_DEFAULTS,
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
        text = in_flags(spelled.help or _described(settings, name, defaults.get(name)))
        short = [spelled.short] if spelled.short else []
        # argparse formats the text
        group.add_argument(*short, spell(name), dest=name, help=text.replace("%", "%%"), **given)


def _described(settings: type[Settings], name: str, default: str | None) -> str:
    """Help text of a setting: its docstring, the rules that it chooses from, and its default."""
    field = settings.model_fields[name]
    text = settings.meaning(name)
    text = (text[:1].lower() + text[1:]).removesuffix(".")
    text, _, usual = text.partition(". Default: ")
    if isinstance(field.annotation, type) and issubclass(field.annotation, RuleName):
        text += f": {field.annotation.listed()}"
    if field.default is False:
        usual = usual or "off"
    elif isinstance(field.default, int | float | str):
        usual = usual or str(field.default)
    usual = default or usual
    return f"{text} (default: {usual})" if usual else text


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


def _body_size(value: str) -> int:
    return parse_size(value, named="--max-body")


class BodyLimit(Settings):
    """The limit of requests of `serve` and `batch`."""

    max_body: Annotated[int | None, Flag(metavar="SIZE"), BeforeValidator(_body_size)] = None
    """Largest request body; the plan keeps memory for it. Default: 64 KiB and 16 bytes for each
    token of the context."""
