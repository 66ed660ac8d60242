"""Groups of flags that several commands share."""

from __future__ import annotations

from argparse import ArgumentParser, _ArgumentGroup
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import get_origin

from edgespec.chat.sampling import DEFAULTS as CHAT_DEFAULTS
from edgespec.settings.base import Settings, descriptions, spell
from edgespec.settings.config import (
    KEPT_BY,
    AcceptanceName,
    FallbackName,
    GenerateSettings,
    Keeps,
    LoadSettings,
    PacerName,
)
from edgespec.settings.options import declared

HUB_NAME = "USER/REPO[:QUANT]"
MEASURED_TEMPERATURE = f"what chat uses: the model's own, otherwise {CHAT_DEFAULTS['temperature']}"
"""The default temperature of measurements."""
NO_DEFAULTS: Mapping[str, str] = MappingProxyType({})


def add_models(parser: ArgumentParser, tuning: bool = False) -> None:
    """Flags for models. With `tuning`, several drafts may be given and presets are not used."""
    group = parser.add_argument_group("models")
    group.add_argument(
        "-m",
        "--model",
        metavar="FILE",
        help="target model: a GGUF file, an ONNX model's folder, or a name from `edgespec models "
        "list` (default: the pair that comes with edgespec)",
    )
    group.add_argument(
        "-md",
        "--model-draft",
        metavar="FILE",
        dest="draft",
        action="append" if tuning else "store",
        help="draft model: a small one of the same family, which guesses; self makes one from the "
        "target, once, and keeps it in the cache (default: none with -m)"
        + ("; may be given several times to find the best one" if tuning else ""),
    )
    group.add_argument(
        "-hf",
        "--hf-repo",
        metavar=HUB_NAME,
        help="download the target from Hugging Face, once (QUANT: Q4_K_M, otherwise the first)",
    )
    group.add_argument(
        "-hfd",
        "--hf-repo-draft",
        metavar=HUB_NAME,
        help="download the draft from Hugging Face, once",
    )
    group.add_argument("--no-draft", action="store_true", help="use no draft model")
    group.add_argument(
        "--config",
        metavar="FILE",
        help="TOML file of settings, or the name of a preset; keys are the long flags' names, and "
        "flags take precedence",
    )
    if not tuning:
        group.add_argument(
            "--no-tuned",
            action="store_true",
            help="ignore the settings that `edgespec tune` found for these models and this budget",
        )


def add_memory(parser: ArgumentParser) -> None:
    """Flags for memory, context and threads, and those that runtimes declare."""
    group = parser.add_argument_group("memory and speed")
    add(group, LoadSettings, memory_budget="SIZE", ctx_size="-c N", batch_size="-b N")
    add(group, LoadSettings, ctx_size_draft="-cd N")
    add(group, LoadSettings, threads="-t N", threads_draft="-td N", gpu_memory_budget="SIZE")
    for options in declared().values():
        group = parser.add_argument_group(f"for {options.kind}")
        for name, flag in options.flags():
            short = [flag.short] if flag.short else []
            group.add_argument(*short, spell(name), metavar=flag.metavar, dest=name, help=flag.help)


def add_context(parser: ArgumentParser) -> None:
    """Flags for texts that exceed the context."""
    group = parser.add_argument_group("at the context's end")
    add(group, GenerateSettings, context_shift="", keep="N")


def add_parallel(parser: ArgumentParser) -> None:
    add(parser.add_argument_group("several texts"), LoadSettings, n_parallel="-np N")


def add_sampling(parser: ArgumentParser, chats: bool = False, serves: bool = False) -> None:
    """Flags for sampling. With `chats`, defaults are those that the model's authors recommend; with
    `serves`, the flags are such defaults for requests, and limit their answers."""
    group = parser.add_argument_group("sampling" + " where a request does not say" * serves)
    recommended = {
        name: f"the model's own, otherwise {value}" for name, value in CHAT_DEFAULTS.items()
    }
    defaults = recommended | {"max_tokens": "-1"} if chats or serves else {}
    if serves:
        limits = parser.add_argument_group("limits of answers")
        add(limits, GenerateSettings, defaults, max_tokens="-n N")
    else:
        add(group, GenerateSettings, defaults, max_tokens="-n N")
    add(group, GenerateSettings, defaults, temperature="T", top_k="K")
    add(group, GenerateSettings, defaults, top_p="P", min_p="P", repeat_penalty="X")
    add(group, GenerateSettings, frequency_penalty="X", presence_penalty="X", repeat_last_n="N")
    add(group, GenerateSettings, logit_bias="-l TOKEN_ID(+/-)BIAS", seed="-s N")
    if not serves:
        add(group, GenerateSettings, stop="TEXT")


def _rules(kept: Keeps) -> str:
    """Names of the acceptance rules that keep `kept` of the target."""
    return ", ".join(name for name, keeps in KEPT_BY.items() if keeps is kept)


def add_measured_temperature(group: _ArgumentGroup | ArgumentParser) -> None:
    """The flag of commands that measure greedy texts and sampled ones."""
    group.add_argument(
        "--temp",
        metavar="T",
        dest="temperature",
        help="measure at this temperature, too, with the filters of `edgespec chat`; 0: greedy "
        f"texts alone, in half of the time (default: {MEASURED_TEMPERATURE})",
    )


def add_speculation(parser: ArgumentParser) -> None:
    defaults = {name: field.default for name, field in GenerateSettings.model_fields.items()}
    group = parser.add_argument_group("speculation (changes no text, but for --acceptance)")
    add(group, GenerateSettings, pacer=_choices(PacerName), fallback=_choices(FallbackName))
    group.add_argument(
        "--acceptance",
        metavar=_choices(AcceptanceName),
        help=f"which guesses are accepted: {_rules(Keeps.DRAWS)} keeps the target's text; "
        f"{_rules(Keeps.DISTRIBUTION)} keep its distribution, not a seed's text; "
        f"{_rules(Keeps.NEITHER)} CHANGE THE TEXT (default: {defaults['acceptance']})",
    )
    add(group, GenerateSettings, draft_max="N", max_depth="N", lookup="")
    group.add_argument(
        "--no-lookup", action="store_false", dest="lookup", help="only the draft model guesses"
    )
    add(group, GenerateSettings, no_overlap="", learn="")


def add(
    group: _ArgumentGroup | ArgumentParser,
    settings: type[Settings],
    defaults: Mapping[str, str] = NO_DEFAULTS,
    /,
    **spellings: str,
) -> None:
    """Add flags for settings, with the settings' docstrings as help.

    `defaults` replaces the defaults shown. `spellings` has the short flag, if there is one, and the
    placeholder; switches have no placeholder.
    """
    for name, spelling in spellings.items():
        *flags, metavar = spelling.split(" ")
        field, text = settings.model_fields[name], descriptions(settings).get(name, "")
        text = (text[:1].lower() + text[1:]).removesuffix(".")
        text, _, default = text.partition(". Default: ")
        if not default and isinstance(field.default, int | float | str):
            default = str(field.default)
        default = defaults.get(name, default)
        text += f" (default: {default})" if default and metavar else ""
        text = text.replace("%", "%%")  # argparse formats it
        flags.append(spell(name))
        if not metavar:
            group.add_argument(*flags, dest=name, action="store_true", help=text)
            continue
        repeats = get_origin(field.annotation) in (tuple, Mapping)
        action = "append" if repeats else "store"
        group.add_argument(*flags, dest=name, metavar=metavar, action=action, help=text)


def add_output(parser: ArgumentParser) -> _ArgumentGroup:
    group = parser.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    return group


def add_max_body(group: _ArgumentGroup) -> None:
    group.add_argument(
        "--max-body",
        metavar="SIZE",
        help="largest request body; the plan keeps memory for it (default: 64 KiB and 16 bytes for "
        "each token of the context)",
    )


def _choices(names: Iterable[str]) -> str:
    return f"{{{','.join(names)}}}"
