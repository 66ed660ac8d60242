"""The flags of `edgespec chat` and its `--help` text. Values stay text."""

from __future__ import annotations

from argparse import ArgumentParser

from edgespec.cli.flags import chat_templates, grammars, groups, prompt_caches

_DESCRIPTION = """\
Chat with a model through its own chat template. If stdin is a pipe, each line is a message."""

_EXAMPLES = """\
examples:
  edgespec chat                       (with SmolLM2-135M-Instruct, downloaded once after a yes)
  edgespec chat -m big.gguf -md small.gguf --memory-budget 4GiB
  edgespec chat -hf USER/REPO --system 'Answer in one sentence.'
  echo 'What is a token tree?' | edgespec chat -m big.gguf

Enter sends, Alt+Enter starts a new line, Ctrl-C stops an answer, Ctrl-D ends. Commands, also in a
pipe with --commands:
  /system [TEXT]  set the system message, or remove it, and start a new conversation
  /reset          start a new conversation
  /save FILE      save the conversation as JSON
  /load FILE      continue a saved conversation
  /stats          show what the last answer cost
  /exit           end"""

SLASH_COMMANDS = _EXAMPLES[_EXAMPLES.index("Enter sends") :]
"""Answer to `/help`."""


def add_to(parser: ArgumentParser) -> None:
    parser.description, parser.epilog = _DESCRIPTION, _EXAMPLES
    groups.add_models(parser)
    groups.add_memory(parser)
    groups.add_context(parser)
    groups.add_sampling(parser, chats=True)
    groups.add_speculation(parser)
    grammars.add_flags(parser)
    prompt_caches.add_flags(parser, keeps_text=True)
    chat_templates.add_flags(parser)
    group = parser.add_argument_group("conversation")
    group.add_argument("--system", metavar="TEXT", help="system message")
    group.add_argument("--load", metavar="FILE", help="continue a saved conversation")
    group.add_argument(
        "--commands", action="store_true", help="obey commands such as /save in a pipe, too"
    )
    group.add_argument("--quiet", action="store_true", help="print no notes or progress")
