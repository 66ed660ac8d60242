"""The flags of `edgespec chat` and its `--help` text. Values stay text."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import TypeVar

from edgespec.cli.flags import chat_templates, grammars, groups, prompt_caches

P = TypeVar("P", bound=ArgumentParser)

_DESCRIPTION = """\
Converse with a model that was trained to, by the chat template that comes with it. Lines of a pipe
are messages, too."""

_EXAMPLES = """\
examples:
  edgespec chat -m big.gguf -md small.gguf --memory-budget 4GiB
  edgespec chat -hf USER/REPO --system 'Answer in one sentence.'
  echo 'What is a token tree?' | edgespec chat -m big.gguf

Enter sends, Alt+Enter breaks the line, Ctrl-C stops an answer, Ctrl-D ends. Within a conversation:
  /system [TEXT]  say, or take back, how the assistant should be; begins anew
  /reset          begin anew
  /save FILE      write the conversation as JSON
  /load FILE      go on with one that was saved
  /stats          what the last answer cost
  /exit           end"""

SLASH_COMMANDS = _EXAMPLES[_EXAMPLES.index("Enter sends") :]
"""Answer to `/help`."""


def add_to(parser: P) -> P:
    """Give `parser` the flags of a conversation."""
    parser.description, parser.epilog = _DESCRIPTION, _EXAMPLES
    groups.add_models(parser)
    groups.add_memory(parser)
    groups.add_sampling(parser, chats=True)
    groups.add_speculation(parser)
    grammars.add_flags(parser)
    prompt_caches.add_flags(parser, keeps_text=True)
    chat_templates.add_flags(parser)
    group = parser.add_argument_group("conversation")
    group.add_argument("--system", metavar="TEXT", help="how the assistant should be")
    group.add_argument("--load", metavar="FILE", help="go on with a conversation that was saved")
    group.add_argument("--quiet", action="store_true", help="no notes or progress")
    return parser
