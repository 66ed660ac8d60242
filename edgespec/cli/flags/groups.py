"""Groups of flags that several commands share."""

from __future__ import annotations

from argparse import ArgumentParser, _ArgumentGroup
from collections.abc import Iterable

from edgespec.chat.sampling import DEFAULTS as CHAT_DEFAULTS
from edgespec.settings.base import spell
from edgespec.settings.config import (
    DEFAULT_CTX_SIZE,
    LOSSLESS,
    AcceptanceName,
    FallbackName,
    GenerateSettings,
    PacerName,
)
from edgespec.settings.options import declared

HUB_NAME = "USER/REPO[:QUANT]"


def add_models(parser: ArgumentParser, tuning: bool = False) -> None:
    """Flags that choose models. `tuning`: several drafts may be given, and no preset is used."""
    group = parser.add_argument_group("models")
    group.add_argument(
        "-m",
        "--model",
        metavar="FILE",
        help="target: a GGUF file, an ONNX model's folder, or a name that `edgespec models list` "
        "shows (default: the embedded pair)",
    )
    group.add_argument(
        "-md",
        "--model-draft",
        metavar="FILE",
        dest="draft",
        action="append" if tuning else "store",
        help="small model of the same family that guesses (default: none with -m)"
        + ("; given several times, the best of them is found" if tuning else ""),
    )
    group.add_argument(
        "-hf",
        "--hf-repo",
        metavar=HUB_NAME,
        help="fetch the target from Hugging Face once, then use it (QUANT: Q4_K_M, or the first)",
    )
    group.add_argument(
        "-hfd", "--hf-repo-draft", metavar=HUB_NAME, help="likewise the draft, instead of -md"
    )
    group.add_argument("--no-draft", action="store_true", help="let the target decode alone")
    group.add_argument(
        "--config",
        metavar="FILE",
        help="TOML file of settings, named like the long flags, or a preset's name; flags win",
    )
    if not tuning:
        group.add_argument(
            "--no-tuned",
            action="store_true",
            help="do not use what `edgespec tune` found for these models and this budget",
        )


def add_memory(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("memory and speed")
    group.add_argument(
        "--memory-budget",
        metavar="SIZE",
        help="peak resident memory of the whole process: 6GiB, 512M, 75%% or auto "
        "(default: auto, what is free now less a margin)",
    )
    group.add_argument(
        "-c",
        "--ctx-size",
        metavar="N",
        help=f"context in tokens (default: 0, the model's own up to {DEFAULT_CTX_SIZE})",
    )
    group.add_argument(
        "-b", "--batch-size", metavar="N", help="prompt tokens per pass (default: planned)"
    )
    group.add_argument(
        "-t", "--threads", metavar="N", help="(default: the physical cores it may use)"
    )
    group.add_argument(
        "-td", "--threads-draft", metavar="N", help="of the draft (default: as --threads)"
    )
    group.add_argument(
        "--gpu-memory-budget",
        metavar="SIZE",
        help="memory of the GPU for ONNX models, the draft's first: 6GiB, 512M, 75%% or auto "
        "(default: auto, what is free there now less a margin)",
    )
    for options in declared().values():
        group = parser.add_argument_group(f"for {options.kind}")
        for name, flag in options.flags():
            short = [flag.short] if flag.short else []
            group.add_argument(*short, spell(name), metavar=flag.metavar, dest=name, help=flag.help)


def add_parallel(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("several texts")
    group.add_argument(
        "-np",
        "--parallel",
        metavar="N",
        dest="n_parallel",
        help="texts that are generated at once, sharing the weights that a pass reads, or auto for "
        "as many as the budget affords; others wait in line (default: 1)",
    )


def add_sampling(parser: ArgumentParser, chats: bool = False) -> None:
    """Flags of sampling. `chats`: defaults are the values that the model's makers recommend."""
    group = parser.add_argument_group("sampling")
    for flags, metavar, setting, text in (
        (("-n", "--n-predict"), "N", "max_tokens", "most tokens, -1 for no limit"),
        (("--temp",), "T", "temperature", "temperature, 0 for greedy"),
        (("--top-k",), "K", "top_k", "keep the K best tokens, 0 for all"),
        (("--top-p",), "P", "top_p", "keep the best tokens that reach P together, 1 for all"),
        (("--min-p",), "P", "min_p", "keep tokens at least P times as probable as the best"),
        (("--repeat-penalty",), "X", "repeat_penalty", "on repeated tokens, 1 for none"),
        (
            ("--frequency-penalty",),
            "X",
            "frequency_penalty",
            "per use so far, 0 for none",
        ),
        (("--presence-penalty",), "X", "presence_penalty", "on what was used at all, 0 for none"),
        (("--repeat-last-n",), "N", "repeat_last_n", "tokens the three look back, -1 for all"),
    ):
        default = GenerateSettings.model_fields[setting].default
        if chats and setting == "max_tokens":
            default = -1
        elif chats and setting in CHAT_DEFAULTS:
            default = f"the model's own, otherwise {CHAT_DEFAULTS[setting]}"
        group.add_argument(
            *flags, metavar=metavar, dest=setting, help=f"{text} (default: {default})"
        )
    group.add_argument(
        "-l",
        "--logit-bias",
        metavar="TOKEN_ID(+/-)BIAS",
        action="append",
        help="make a token likelier (15043+1), rarer (15043-1) or impossible (15043-inf); may be "
        "repeated",
    )
    group.add_argument(
        "-s", "--seed", metavar="N", help="-1 draws one, which is reported (default: -1)"
    )
    group.add_argument(
        "--stop", metavar="TEXT", action="append", help="end before this text; may be repeated"
    )


def add_speculation(parser: ArgumentParser) -> None:
    defaults = {name: field.default for name, field in GenerateSettings.model_fields.items()}
    group = parser.add_argument_group("speculation (never changes the text)")
    group.add_argument(
        "--pacer",
        metavar=_choices(PacerName),
        help=f"which branch of the token tree grows next (default: {defaults['pacer']})",
    )
    group.add_argument(
        "--fallback",
        metavar=_choices(FallbackName),
        help=f"when the target verifies (default: {defaults['fallback']})",
    )
    group.add_argument(
        "--acceptance",
        metavar=_choices(AcceptanceName),
        help=f"which guesses stand; none changes the text with {', '.join(sorted(LOSSLESS))} "
        f"(default: {defaults['acceptance']})",
    )
    group.add_argument(
        "--draft-max",
        metavar="N",
        help="most guesses that one pass verifies, 0 for no draft "
        f"(default: planned; {defaults['draft_max']} where nothing is paged)",
    )
    group.add_argument(
        "--draft-depth",
        metavar="N",
        dest="max_depth",
        help="most guesses in a row, down one branch (default: as many as --draft-max)",
    )
    group.add_argument(
        "--lookup",
        action="store_true",
        help="guess from the text itself, too: what followed when its last words occurred before "
        "(default: beside a draft model, not without one)",
    )
    group.add_argument(
        "--no-lookup", action="store_false", dest="lookup", help="leave the guesses to the draft"
    )
    add_corpus(group)
    group.add_argument(
        "--no-overlap", action="store_true", help="do not draft while the target verifies"
    )


def add_corpus(group: ArgumentParser | _ArgumentGroup) -> None:
    group.add_argument(
        "-lcs",
        "--lookup-cache-static",
        metavar="FILE",
        help="guess from a corpus, too: an index of it that `edgespec models index` wrote with the "
        "target's vocabulary",
    )


def add_output(parser: ArgumentParser) -> _ArgumentGroup:
    group = parser.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="one JSON object on stdout")
    return group


def _choices(names: Iterable[str]) -> str:
    return f"{{{','.join(names)}}}"
