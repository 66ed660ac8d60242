"""The flags of `edgespec serve` and its `--help` text. Values stay text."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import TypeVar

from edgespec.cli.flags import chat_templates, groups

P = TypeVar("P", bound=ArgumentParser)

HOST, PORT = "127.0.0.1", 8080
QUEUE = 32
KEY_VARIABLE = "EDGESPEC_API_KEY"

_DESCRIPTION = """\
Answer requests in the shape of OpenAI's API, one at a time; others wait in line. A small page to
chat is at /, figures for Prometheus are at /metrics."""

_EXAMPLES = """\
examples:
  edgespec serve -m big.gguf -md small.gguf --memory-budget 4GiB
  curl http://127.0.0.1:8080/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{"messages": [{"role": "user", "content": "Hello"}], "stream": true}'
  edgespec serve -hf USER/REPO --host 0.0.0.0 --api-key-file key.txt

It is reached from this machine only, unless --host says otherwise; then it wants a key. What a
request does not say about sampling is as the model's makers recommend, otherwise temperature 0.8,
top_k 40, top_p 0.95 and min_p 0.05, as llama.cpp has it."""


def add_to(parser: P) -> P:
    """Give `parser` the flags of a server."""
    parser.description, parser.epilog = _DESCRIPTION, _EXAMPLES
    groups.add_models(parser)
    groups.add_memory(parser)
    groups.add_parallel(parser)
    groups.add_speculation(parser)
    chat_templates.add_flags(parser)
    group = parser.add_argument_group("server")
    group.add_argument("--host", metavar="ADDRESS", help=f"(default: {HOST})")
    group.add_argument("--port", metavar="N", help=f"0 takes a free one (default: {PORT})")
    group.add_argument(
        "--api-key",
        metavar="KEY",
        help=f"what clients must send; others see a flag, so better --api-key-file or "
        f"{KEY_VARIABLE} in the environment",
    )
    group.add_argument("--api-key-file", metavar="FILE", help="likewise, from a file")
    group.add_argument(
        "--allowed-host",
        metavar="NAME",
        action="append",
        help="another name by which clients may call this machine; may be repeated",
    )
    group.add_argument("--alias", metavar="NAME", help="what the model is called in answers")
    group.add_argument(
        "--queue",
        metavar="N",
        help=f"requests that may wait; further ones get 503 (default: {QUEUE})",
    )
    group.add_argument(
        "--max-body",
        metavar="SIZE",
        help="of a request; the plan keeps memory for it (default: 64 KiB and 16 bytes for each "
        "token of the context)",
    )
    group.add_argument(
        "--max-prompt", metavar="N", help="tokens of a prompt (default: the context)"
    )
    parser.add_argument("--quiet", action="store_true", help="no notes or progress")
    return parser
