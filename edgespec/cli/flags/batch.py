"""The flags of `edgespec batch` and its `--help` text. Values stay text."""

from __future__ import annotations

from argparse import ArgumentParser

from edgespec.cli.flags import chat_templates, groups

_DESCRIPTION = """\
Answer a file of requests, each a line in OpenAI's batch format:

  {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions",
   "body": {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 64}}

(on one line), or with the url /v1/completions and a body like {"prompt": "Once", "max_tokens": 64}.
Each answer is written to OUT as soon as it is complete, with the custom_id of its request:

  {"id": "batch_req_...", "custom_id": "a", "error": null,
   "response": {"status_code": 200, "request_id": "...", "body": {"choices": ...}}}"""

_EXAMPLES = """\
examples:
  edgespec batch requests.jsonl answers.jsonl -m big.gguf -md small.gguf --memory-budget 4GiB
  edgespec batch requests.jsonl answers.jsonl -m big.gguf -np auto
      as many texts at a time as the budget affords: they share the weights that a pass reads
  make-requests | edgespec batch - - | jq .response.body.choices[0]
      through pipes

To resume a run that was interrupted, by Ctrl-C, kill -9 or a power cut, run the same command again:
requests with a line in OUT are skipped, and an incomplete last line is removed. A line that is not
a valid request, or that repeats a custom_id, gets a line with its error. A request at which the
model failed (status 500 or more) is tried again by the next run, and its last line counts. To
answer other requests again, delete their lines from OUT, or the whole file.

exit codes: 0 all were answered, 1 some have errors or the run failed, 130 interrupted"""


def add_to(parser: ArgumentParser) -> None:
    parser.description, parser.epilog = _DESCRIPTION, _EXAMPLES
    parser.add_argument("input", metavar="IN", help="file of requests; - is stdin")
    parser.add_argument("out", metavar="OUT", help="file of answers, which grows; - is stdout")
    groups.add_models(parser)
    groups.add_memory(parser)
    groups.add_context(parser)
    groups.add_parallel(parser)
    groups.add_speculation(parser)
    chat_templates.add_flags(parser)
    groups.add_max_body(parser.add_argument_group("requests"))
    parser.add_argument("--quiet", action="store_true", help="print no notes or progress")
