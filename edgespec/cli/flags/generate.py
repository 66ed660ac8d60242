"""The flags of `edgespec generate` and its `--help` text. Values stay text."""

from __future__ import annotations

from argparse import ArgumentParser

from edgespec.cli.flags import grammars, groups, prompt_caches

_EXAMPLES = """\
examples:
  edgespec generate -p 'def gcd(a, b):' -n 64
  git diff | edgespec generate -m big.gguf -md small.gguf -n 200
  edgespec generate -m big.gguf --memory-budget 50% -f prompt.txt --json > answer.json
  edgespec generate --config memory-8gb -m big.gguf -md small.gguf -p 'Hello' --temp 0.8 --seed 1

The text goes to stdout token by token, everything else to stderr. The draft never changes the text:
the same seed gives the same text with and without it."""


def add_to(parser: ArgumentParser) -> None:
    parser.description = "Continue a prompt."
    parser.epilog = _EXAMPLES
    prompt = parser.add_argument_group("prompt (or text piped to stdin)")
    prompt.add_argument("-p", "--prompt", metavar="TEXT", help="the text to continue")
    prompt.add_argument("-f", "--file", metavar="FILE", help="read the prompt from a UTF-8 file")
    groups.add_models(parser)
    groups.add_memory(parser)
    groups.add_context(parser)
    groups.add_sampling(parser)
    grammars.add_flags(parser)
    prompt_caches.add_flags(parser, keeps_text=False)
    groups.add_speculation(parser)
    output = parser.add_argument_group("output")
    output.add_argument(
        "--json",
        metavar="FILE",
        nargs="?",
        const="-",
        help="write all figures and the text as a JSON object; without FILE, only that on stdout",
    )
    output.add_argument("--quiet", action="store_true", help="print no notes, progress or summary")
    output.add_argument(
        "--trace",
        metavar="FILE",
        help="record where time and memory go, for ui.perfetto.dev or chrome://tracing",
    )
    output.add_argument(
        "--color",
        choices=("auto", "always", "never"),
        help="show guessed tokens in green (default: auto, which is in a terminal)",
    )
