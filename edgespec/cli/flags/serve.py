"""The flags of `edgespec serve` and its `--help` text. Values stay text."""

from __future__ import annotations

from argparse import ArgumentParser

from edgespec.cli.flags import chat_templates, groups

HOST, PORT = "127.0.0.1", 8080
QUEUE = 32
KEY_VARIABLE = "EDGESPEC_API_KEY"

_DESCRIPTION = """\
Run an HTTP server with OpenAI's API. As many requests as -np says are answered at once, others wait
in line. A small chat page is at /, metrics for Prometheus are at /metrics."""

_EXAMPLES = """\
examples:
  edgespec serve -m big.gguf -md small.gguf --memory-budget 4GiB
  curl http://127.0.0.1:8080/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{"messages": [{"role": "user", "content": "Hello"}], "stream": true}'
  edgespec serve -hf USER/REPO --host 0.0.0.0 --api-key-file key.txt

By default only this machine can connect; another --host needs an API key. Sampling settings that a
request leaves out are those that the model's makers recommend, otherwise llama.cpp's: temperature
0.8, top_k 40, top_p 0.95 and min_p 0.05."""


def add_to(parser: ArgumentParser) -> None:
    parser.description, parser.epilog = _DESCRIPTION, _EXAMPLES
    groups.add_models(parser)
    groups.add_memory(parser)
    groups.add_context(parser)
    groups.add_parallel(parser)
    groups.add_speculation(parser)
    chat_templates.add_flags(parser)
    group = parser.add_argument_group("server")
    group.add_argument("--host", metavar="ADDRESS", help=f"address to listen on (default: {HOST})")
    group.add_argument("--port", metavar="N", help=f"port; 0 takes a free one (default: {PORT})")
    group.add_argument(
        "--api-key",
        metavar="KEY",
        help="key that clients must send; other users can see flags, so prefer --api-key-file or "
        f"the environment variable {KEY_VARIABLE}",
    )
    group.add_argument("--api-key-file", metavar="FILE", help="the same, from a file")
    group.add_argument(
        "--allowed-host",
        metavar="NAME",
        action="append",
        help="host name that requests may use besides the address; may be given several times",
    )
    group.add_argument("--alias", metavar="NAME", help="name of the model in answers")
    group.add_argument(
        "--queue",
        metavar="N",
        help=f"requests that may wait; more are refused with status 503 (default: {QUEUE})",
    )
    groups.add_max_body(group)
    group.add_argument(
        "--max-prompt", metavar="N", help="most tokens of a prompt (default: the context)"
    )
    parser.add_argument("--quiet", action="store_true", help="print no notes or progress")
