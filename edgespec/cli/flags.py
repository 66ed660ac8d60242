"""The command line's grammar: commands, flags and what `--help` says. It runs nothing.

Flags are spelled like llama.cpp's. Values stay text: `edgespec.config` checks them, so that a flag,
a line of a TOML file and a Python argument get the same answer.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NoReturn, get_args

from edgespec.cli import bench_flags, fetching, model_flags, serving
from edgespec.config import (
    DEFAULT_CTX_SIZE,
    LOSSLESS,
    AcceptanceName,
    CacheType,
    FallbackName,
    GenerateSettings,
    PacerName,
    Provider,
)
from edgespec.errors import UsageError
from edgespec.settings import nearest

DEMO_SIZE = "512MiB"
DEMO_TOKENS = 40

_EXAMPLES = """\
examples:
  edgespec demo
      see a model that does not fit its memory budget answer, without and with a draft
  edgespec generate -p 'def read_lines(filename):' -n 64
      use the embedded pair of models
  edgespec generate -m big.gguf -md small.gguf --memory-budget 4GiB -p 'Once upon a time'
      page the big model in, let the small one guess
  edgespec plan -m big.gguf -md small.gguf --memory-budget 4GiB
      see who would get which bytes, without loading weights

exit codes: 0 done, 1 failed, 2 usage, 3 model, 4 memory budget, 130 interrupted
EDGESPEC_DEBUG=1 in the environment shows the traceback of an error."""

_GENERATE_EXAMPLES = """\
examples:
  edgespec generate -p 'def gcd(a, b):' -n 64
  git diff | edgespec generate -m big.gguf -md small.gguf -n 200
  edgespec generate -m big.gguf --memory-budget 50% -f prompt.txt --json > answer.json
  edgespec generate --config memory-8gb -m big.gguf -md small.gguf -p 'Hello' --temp 0.8 --seed 1

The text goes to stdout as it is accepted, everything else to stderr. The draft never changes the
text: same seed, same text, with and without it."""

_PLAN_EXAMPLES = """\
examples:
  edgespec plan -m big.gguf -md small.gguf --memory-budget 4GiB
  edgespec plan -m big.gguf --memory-budget 2G -c 8192 --disk-bandwidth 300M --json

A budget that cannot work ends with exit code 4 and names the smallest one that can."""


_DOCTOR_EXAMPLES = """\
examples:
  edgespec doctor
  edgespec doctor -m big.gguf -md small.gguf --memory-budget 4GiB --tokens-per-pass 4

It loads no weights and writes at most 64 MiB, to measure a disk. What it predicts is what storage
allows; computing may take longer."""


GREETING = """\
edgespec runs a language model that does not fit in memory.

  edgespec demo                               see it work, on models that come along
  edgespec generate -p 'def gcd(a, b):'       let them continue a text
  edgespec generate -m big.gguf -md small.gguf --memory-budget 4GiB -p 'Once upon a time'
  edgespec --help                             everything else
"""
"""For those who give no command."""

_ELSEWHERE = {
    "-v": "--version shows the version",
    "-V": "--version shows the version",
    "-version": "--version shows the version",
    "-?": "--help shows the commands",
    "-help": "--help shows the commands",
}
"""What other programs' flags are called here."""


class _Parser(argparse.ArgumentParser):
    """Answers mistakes with one UsageError instead of a page of usage."""

    def __init__(self, **kwargs: Any) -> None:
        kwargs.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(allow_abbrev=False, argument_default=argparse.SUPPRESS, **kwargs)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; {self.prog} --help explains")

    def known_flags(self) -> list[str]:
        return list(self._option_string_actions)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """What was given, and only that: no defaults. Raises UsageError, SystemExit after `--help`."""
    parser, commands, of_models = _parsers()
    given, unknown = parser.parse_known_args(arguments)
    if getattr(given, "command", None) is None:
        if unknown and unknown[0] in _ELSEWHERE:
            raise UsageError(f"unknown flag {unknown[0]}: {_ELSEWHERE[unknown[0]]}")
        parser.error(f"a command is missing: {', '.join(commands)}")
    if unknown:
        command = of_models[given.action] if "action" in given else commands[given.command]
        flag = unknown[0].partition("=")[0]
        if flag.startswith("-"):
            raise UsageError(f"unknown flag {flag}{nearest(flag, command.known_flags())}")
        command.error(f"unexpected argument {unknown[0]!r}")
    return given


def installed_version() -> str:
    try:
        return version("edgespec")
    except PackageNotFoundError:  # a checkout on the path, never installed
        return "unknown"


def _parsers() -> tuple[_Parser, dict[str, _Parser], dict[str, _Parser]]:
    """The parser of everything, of each command, and of each command of `models`."""
    parser = _Parser(
        prog="edgespec",
        description="Run a language model that does not fit in memory: its weights are paged in "
        "under a\nbudget, and one pass over them checks many tokens that a small draft guessed.",
        epilog=_EXAMPLES,
    )
    parser.add_argument("--version", action="version", version=f"edgespec {installed_version()}")
    adder = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND")
    commands = {
        "generate": _generate(adder.add_parser("generate", help="continue a prompt")),
        "serve": _serve(adder.add_parser("serve", help="answer over HTTP, as OpenAI's API does")),
        "plan": _plan(adder.add_parser("plan", help="say who gets which bytes; load nothing")),
        "demo": _demo(adder.add_parser("demo", help="see it work on the embedded models")),
        "bench": bench_flags.add_to(adder.add_parser("bench", help="measure and compare, report")),
        "doctor": _doctor(adder.add_parser("doctor", help="say what this machine allows")),
        "models": adder.add_parser(
            "models", help="list, describe, fetch, compare and enlarge models"
        ),
    }
    return parser, commands, model_flags.add_to(commands["models"])


def _generate(parser: _Parser) -> _Parser:
    parser.description = "Continue a prompt."
    parser.epilog = _GENERATE_EXAMPLES
    prompt = parser.add_argument_group("prompt (or text piped to stdin)")
    prompt.add_argument("-p", "--prompt", metavar="TEXT", help="the text to continue")
    prompt.add_argument("-f", "--file", metavar="FILE", help="read the prompt from a UTF-8 file")
    _model_flags(parser)
    _memory_flags(parser)
    _sampling_flags(parser)
    _speculation_flags(parser)
    output = _output_flags(parser)
    output.add_argument("--quiet", action="store_true", help="no notes, progress or summary")
    output.add_argument(
        "--trace",
        metavar="FILE",
        help="record where time and memory go; ui.perfetto.dev or chrome://tracing opens FILE",
    )
    output.add_argument(
        "--color",
        choices=("auto", "always", "never"),
        help="show in colour which tokens the draft had guessed (default: auto, on a terminal)",
    )
    return parser


def _plan(parser: _Parser) -> _Parser:
    parser.description = "Say who would get which bytes under a memory budget."
    parser.epilog = _PLAN_EXAMPLES
    _model_flags(parser)
    _memory_flags(parser)
    draft_max = GenerateSettings.model_fields["draft_max"].default
    parser.add_argument_group("draft").add_argument(
        "--draft-max",
        metavar="N",
        help=f"most guesses per pass: decides buffer sizes, 0 for no draft (default: {draft_max})",
    )
    storage = parser.add_argument_group("storage")
    storage.add_argument(
        "--disk-bandwidth",
        metavar="RATE",
        help="bytes per second for the prediction, like 300M, in decimal units as storage is sold "
        "(default: measured, a third of a second)",
    )
    _output_flags(parser)
    return parser


def _serve(parser: _Parser) -> _Parser:
    parser.description, parser.epilog = serving.DESCRIPTION, serving.EXAMPLES
    _model_flags(parser)
    _memory_flags(parser)
    _speculation_flags(parser)
    serving.add_flags(parser)
    parser.add_argument("--quiet", action="store_true", help="no notes or progress")
    return parser


def _doctor(parser: _Parser) -> _Parser:
    parser.description = (
        "Say what this machine has and what stands in the way: cores, memory, disks and their\n"
        "speed, GPUs, libraries, the cache folder. With models, also what limits them here and\n"
        "what would help most."
    )
    parser.epilog = _DOCTOR_EXAMPLES
    _model_flags(parser)
    _memory_flags(parser)
    parser.add_argument_group("prediction").add_argument(
        "--tokens-per-pass",
        metavar="X",
        help="what a pass of the pair yields, as `edgespec models check` measures it (default: 1)",
    )
    _output_flags(parser)
    return parser


def _demo(parser: _Parser) -> _Parser:
    parser.description = (
        "Enlarge the embedded target once, to a file in the cache folder, and complete a Python\n"
        "function with it under a budget of about half of that file: first alone, then drafted.\n"
        "The enlarged model writes the same text as the small one, at the cost of its own size."
    )
    parser.add_argument("--size", metavar="SIZE", help=f"of the target (default: {DEMO_SIZE})")
    parser.add_argument(
        "-n", "--n-predict", metavar="N", dest="max_tokens", help=f"(default: {DEMO_TOKENS})"
    )
    return parser


def _model_flags(parser: _Parser) -> None:
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
        help="small model of the same family that guesses (default: none with -m)",
    )
    fetching.add_flags(group)
    group.add_argument("--no-draft", action="store_true", help="let the target decode alone")
    group.add_argument(
        "--config",
        metavar="FILE",
        help="TOML file of settings, named like the long flags, or a preset's name; flags win",
    )


def _memory_flags(parser: _Parser) -> None:
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
    cache_types = ", ".join(get_args(CacheType))
    for which in ("k", "v"):
        group.add_argument(
            f"-ct{which}",
            f"--cache-type-{which}",
            metavar="TYPE",
            help=f"of the {which.upper()} cache: {cache_types} (default: f16)",
        )
    group.add_argument(
        "-fa", "--flash-attn", metavar="{auto,on,off}", help="flash attention (default: auto)"
    )
    group.add_argument(
        "--provider",
        metavar=_choices(get_args(Provider)),
        help="what computes ONNX models; CUDA and CoreML were never run on a real device yet "
        "(default: auto, which is cuda where it can be used, else cpu)",
    )
    group.add_argument(
        "--gpu-memory-budget",
        metavar="SIZE",
        help="memory of the GPU for ONNX models, the draft's first: 6GiB, 512M, 75%% or auto "
        "(default: auto, what is free there now less a margin)",
    )
    for short, name, owner in (("-ngl", "", "target"), ("-ngld", "-draft", "draft")):
        group.add_argument(
            short,
            f"--n-gpu-layers{name}",
            metavar="N",
            help=f"layers of the {owner} on the GPU, with a GPU build of llama.cpp (default: 0)",
        )


def _sampling_flags(parser: _Parser) -> None:
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


def _speculation_flags(parser: _Parser) -> None:
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
        f"(default: {defaults['draft_max']})",
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
    group.add_argument(
        "--no-overlap", action="store_true", help="do not draft while the target verifies"
    )


def _output_flags(parser: _Parser) -> argparse._ArgumentGroup:
    group = parser.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="one JSON object on stdout")
    return group


def _choices(names: Iterable[str]) -> str:
    return f"{{{','.join(names)}}}"
