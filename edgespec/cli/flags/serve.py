"""The flags of `edgespec serve` and its `--help` text. Values stay text."""

from __future__ import annotations

from argparse import ArgumentParser, _ArgumentGroup

from edgespec.cli.flags import chat_templates, groups

HOST, PORT = "127.0.0.1", 8080
QUEUE = 32
DRAIN_S = 30
KEY_VARIABLE = "EDGESPEC_API_KEY"

_DESCRIPTION = """\
Run an HTTP server with OpenAI's API. As many requests as -np says are answered at once, others wait
in line. A small chat page is at /, metrics for Prometheus are at /metrics. While the model loads,
the answer is 503. Each request is one line on stderr."""

_EXAMPLES = """\
examples:
  edgespec serve -m big.gguf -md small.gguf --memory-budget 4GiB
  curl http://127.0.0.1:8080/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{"messages": [{"role": "user", "content": "Hello"}], "stream": true}'
  edgespec serve -hf USER/REPO --host 0.0.0.0 --api-key-file key.txt

By default only this machine can connect; another --host needs an API key. Sampling settings that a
request leaves out are those of the flags, otherwise those that the model's makers recommend,
otherwise llama.cpp's: temperature 0.8, top_k 40, top_p 0.95 and min_p 0.05."""


def add_to(parser: ArgumentParser) -> None:
    parser.description, parser.epilog = _DESCRIPTION, _EXAMPLES
    groups.add_models(parser)
    groups.add_memory(parser)
    groups.add_context(parser)
    groups.add_parallel(parser)
    groups.add_sampling(parser, serves=True)
    groups.add_speculation(parser)
    chat_templates.add_flags(parser)
    group = parser.add_argument_group("server")
    group.add_argument("--host", metavar="ADDRESS", help=f"address to listen on (default: {HOST})")
    group.add_argument("--port", metavar="N", help=f"port; 0 takes a free one (default: {PORT})")
    _add_access(group)
    group.add_argument("--alias", metavar="NAME", help="name of the model in answers")
    _add_limits(group)
    output = parser.add_argument_group("output")
    output.add_argument(
        "--log-json", action="store_true", help="log each request as a JSON object on one line"
    )
    output.add_argument("--quiet", action="store_true", help="print no notes, progress or requests")


def _add_access(group: _ArgumentGroup) -> None:
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
    group.add_argument(
        "--allowed-origin",
        metavar="ORIGIN",
        action="append",
        help="origin of web pages that may ask from a browser (CORS), such as "
        "http://localhost:3000, or * for any; may be given several times",
    )


def _add_limits(group: _ArgumentGroup) -> None:
    group.add_argument(
        "--queue",
        metavar="N",
        help=f"requests that may wait; more are refused with status 503 (default: {QUEUE})",
    )
    groups.add_max_body(group)
    group.add_argument(
        "--max-prompt", metavar="N", help="most tokens of a prompt (default: the context)"
    )
    group.add_argument(
        "--time-limit",
        metavar="SECONDS",
        help="most seconds of an answer from its turn on, after which it ends as if its tokens "
        "were used up (default: no limit)",
    )
    group.add_argument(
        "--drain",
        metavar="SECONDS",
        help="seconds that requests under way have after Ctrl-C or SIGTERM; a second one ends them "
        f"at once (default: {DRAIN_S})",
    )
