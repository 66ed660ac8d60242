"""`edgespec chat`: a conversation in the terminal.

Reads lines, streams answers, and runs the slash commands.
"""

from __future__ import annotations

import argparse
import secrets
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgespec.chat.dialogue import Dialogue
from edgespec.cli import fetching
from edgespec.cli.commands import chat_input
from edgespec.cli.commands.generation_report import generation_report, sampling_line, speed_line
from edgespec.cli.console import Console
from edgespec.cli.flags import groups
from edgespec.cli.flags.checked_values import grammar_from, template_from
from edgespec.cli.interrupts import Interrupts
from edgespec.cli.invocation import of_file, settings_from
from edgespec.errors import EdgespecError, UsageError, marked
from edgespec.files import cache_folder
from edgespec.memory import process
from edgespec.models import packaged
from edgespec.settings.base import expanded
from edgespec.settings.units import format_size

if TYPE_CHECKING:
    from edgespec.chat.prompts import ChatPrompt
    from edgespec.chat.reasoning import Part
    from edgespec.engine.generation import Generation
    from edgespec.grammar.specification import Grammar
    from edgespec.session.session import Session
    from edgespec.settings.config import GenerateSettings, SamplingParams
    from edgespec.values import GenerationResult


_DESCRIPTION = """\
Chat with a model through its own chat template. If stdin is a pipe, each line is a message."""

_EXAMPLES = """\
examples:
  edgespec chat                       (with SmolLM2-135M-Instruct, downloaded once after a yes)
  edgespec chat -m big.gguf -md small.gguf --memory-budget 4GiB
  edgespec chat -hf USER/REPO --system 'Answer in one sentence.'
  echo 'What is a token tree?' | edgespec chat -m big.gguf

Enter sends, Alt+Enter starts a new line, Ctrl-C stops an answer, Ctrl-D ends.
Commands:
  /system [TEXT]  set or remove the system message, in a new conversation
  /reset          start a new conversation
  /save FILE      save the conversation as JSON
  /load FILE      continue a saved conversation
  /stats          show what the last answer cost
  /exit           end, as /bye and exit do"""

SLASH_COMMANDS = _EXAMPLES[_EXAMPLES.index("Enter sends") :]
"""Answer to `/help`."""


def add_to(parser: ArgumentParser) -> None:
    parser.description, parser.epilog = _DESCRIPTION, _EXAMPLES
    groups.add_models(parser)
    groups.add_memory(parser)
    groups.add_sampling(parser, chats=True)
    groups.add_grammar(parser)
    groups.add_texts(parser)
    groups.add_chat_template(parser)
    group = parser.add_argument_group("conversation")
    groups.flag(group, "--system TEXT", "system message")
    groups.flag(group, "--quiet", "print no notes or progress")


NO_LIMIT = "-1"
"""Value of -n for answers without a token limit."""

NAMES_A_MODEL = frozenset(("model", "hf_repo", "chat_template"))
"""Settings that choose a model; a template without a model is for the embedded pair."""


def run(args: argparse.Namespace, interrupts: Interrupts) -> int:
    """Chat until the input ends.

    The exit code is that of the first failed message of a pipe; in a terminal, where the user saw
    the error, it is 0.
    """
    template = template_from(args)
    grammar = grammar_from(args)
    if "max_tokens" not in args:
        args.max_tokens = NO_LIMIT
    console = Console(quiet="quiet" in args)
    given = of_file(args)[1] | vars(args)
    if not NAMES_A_MODEL & given.keys():
        budget = given.get("memory_budget", "auto")
        args.model = fetching.chat_model(console, budget, may_ask="quiet" not in args)
        if packaged.named(args.model) == fetching.CHAT_MODEL:
            args.system = getattr(args, "system", fetching.SYSTEM)
    command = settings_from(args)
    # before loading, so that a missing package is reported early and its memory is planned
    is_terminal = chat_input.is_terminal(sys.stdin)
    messages = chat_input.lines(_history(console) if is_terminal else None)
    dialogue = Dialogue(getattr(args, "system", None))
    with command.opened(console, template) as loaded:
        loaded.chat_prompt([{"role": "user", "content": "Hello"}])  # refused now, or never
        chat = Chat(loaded, dialogue, command.generate, grammar, console, obeys=is_terminal)
        with ExitStack() as stack:
            if is_terminal:
                console.note(
                    f"{loaded.target.name} (budget {format_size(loaded.plan.budget_bytes)}): /help "
                    "lists keys and commands, Ctrl-D ends"
                )
                # while a line is edited, Ctrl-C is an ordinary key
                stack.enter_context(interrupts.stopping(chat.stop, repeatable=True))
            for line in messages:
                if not chat.take(line):
                    break
        return 0 if is_terminal else chat.exit_code


def _history(console: Console) -> Path | None:
    """The file of a terminal's messages; None, with a note, where it cannot be written."""
    try:
        path = cache_folder.make_folder() / "chat_history"
        chat_input.make_private(path)
    except EdgespecError as error:
        console.note(f"messages are not kept for the next conversation: {error}")
        return None
    return path


class Chat:
    """One conversation with one session."""

    def __init__(
        self,
        session: Session,
        dialogue: Dialogue,
        settings: GenerateSettings,
        grammar: Grammar | None,
        console: Console,
        obeys: bool = True,
    ) -> None:
        """With `obeys`, lines that begin with a slash are commands, otherwise messages."""
        self._session = session
        self._dialogue = dialogue
        self._settings = settings
        self._grammar = grammar
        self._console = console
        self._obeys = obeys
        self._seed = secrets.randbits(32) if settings.seed is None else settings.seed
        self.exit_code = 0
        """Exit code of the first failure; 0 if there was none."""
        self._n_answers = 0
        self._sampling: SamplingParams | None = None
        """Sampling parameters of the last answer."""
        self._last: GenerationResult | None = None
        self._running: Generation | None = None
        self._is_stopped = False

    def stop(self) -> None:
        """End the running answer, or the one about to start, from any thread."""
        self._is_stopped = True
        if (running := self._running) is not None:
            running.cancel()

    def take(self, line: str) -> bool:
        """Answer a message or run a slash command; False ends the conversation."""
        text = line.strip()
        self._is_stopped = False
        try:
            if self._obeys and text in chat_input.ENDINGS:
                return False
            if self._obeys and text.startswith("/"):
                self._obey(text)
            elif text:
                self._answer(text)
        except BrokenPipeError:  # nobody reads the answers any more
            raise
        except (EdgespecError, OSError) as error:
            self._console.complain(f"error: {marked(error)}")
            self.exit_code = self.exit_code or getattr(error, "exit_code", 1)
        return True

    def _obey(self, text: str) -> None:
        name, _, rest = text.partition(" ")
        if name not in self._commands:
            raise UsageError(f"{name} is not a command: {', '.join(chat_input.COMMANDS)}")
        self._commands[name](rest.strip())

    @property
    def _commands(self) -> dict[str, Callable[[str], None]]:
        return {
            "/system": self._set_system,
            "/reset": lambda rest: self._dialogue.reset(),
            "/save": self._save,
            "/load": self._load,
            "/stats": self._tell_stats,
            "/help": lambda rest: self._console.note(SLASH_COMMANDS),
        }

    def _set_system(self, text: str) -> None:
        self._dialogue.reset()
        self._dialogue.system = text or None

    def _save(self, text: str) -> None:
        self._dialogue.save(path := _path(text, "/save"))
        self._console.note(f"saved: {path}")

    def _load(self, text: str) -> None:
        self._dialogue.load(path := _path(text, "/load"))
        self._console.note(f"loaded: {path}, {len(self._dialogue.messages)} messages")

    def _tell_stats(self, rest: str) -> None:
        if self._last is None:
            raise UsageError("/stats: no answer yet")
        result, session = self._last, self._session
        report = generation_report(
            result, session.plan, session.load_report, process.peak_rss_bytes()
        )
        self._console.note(f"reused: {result.reused_tokens} tokens that were read before")
        if self._sampling is not None:
            self._console.note(f"sampling: {sampling_line(self._sampling)}")
        self._console.note("\n".join(report.lines()))

    def _answer(self, text: str) -> None:
        turns = self._dialogue.turns
        turns.append({"role": "user", "content": text})
        try:
            message = self._generate()
        except BaseException:
            turns.pop()
            raise
        if message["content"] or message.get("reasoning_content") or not self._is_cancelled:
            turns.append({"role": "assistant"} | message)
        else:
            turns.pop()

    @property
    def _is_cancelled(self) -> bool:
        return self._last is not None and self._last.finish_reason == "cancelled"

    def _generate(self) -> dict[str, Any]:
        """Generate and show the assistant's message, which Ctrl-C ends early."""
        settings = self._settings
        prompt = self._prompt()
        if self._grammar is not None:
            prompt = prompt.closed()
        splitter = prompt.splitter()
        said = {"reasoning": "", "answer": ""}
        with self._session.stream(
            prompt.tokens,
            self._next_sampling(),
            settings.limit,
            settings.stop,
            self._console.progress_with_rest,
            self._grammar,
            shown=prompt.hidden_marks,
        ) as generation:
            self._running = generation
            if self._is_stopped:
                generation.cancel()
            n_characters = 0
            for event in generation:
                self._show(splitter.push(event.text), said)
                n_characters += len(event.text)
            self._running, self._last = None, generation.result
        self._show(splitter.push(self._last.text[n_characters:]), said)
        self._show(splitter.finish(), said)
        self._console.end_of_answer()
        was_begun = self._last.tokens or not self._is_cancelled
        self._console.note(
            speed_line(self._last) if was_begun else "stopped before the first token"
        )
        if self._last.finish_reason == "context":
            self._console.note("the context is full: the answer ends here")
        message = {"content": said["answer"]}
        return message | ({"reasoning_content": said["reasoning"]} if said["reasoning"] else {})

    def _prompt(self) -> ChatPrompt:
        """The prompt of the conversation, which loses its first turns when it is longer than the
        context, until half of that is free."""
        dialogue = self._dialogue
        prompt = self._session.chat_prompt(dialogue.messages)
        n_ctx, n_before = self._session.target.n_ctx, dialogue.n_forgotten
        if len(prompt.tokens) > n_ctx:
            while len(prompt.tokens) > n_ctx // 2 and dialogue.forget():
                prompt = self._session.chat_prompt(dialogue.messages)
        if n_forgotten := dialogue.n_forgotten - n_before:
            self._console.note(
                f"the context is full: {n_forgotten} more messages at its beginning are left out "
                "from now on (/save keeps them)"
            )
        return prompt

    def _next_sampling(self) -> SamplingParams:
        """Sampling parameters with a new seed for each answer.

        Otherwise answers would share random numbers, which depend only on seed and position.
        """
        seed = (self._seed + self._n_answers) % (1 << 64)
        self._n_answers += 1
        self._sampling = self._settings.sampling(seed, self._session.chat_sampling)
        return self._sampling

    def _show(self, parts: Iterable[Part], said: dict[str, str]) -> None:
        """Show text; reasoning is dim if there are colours, otherwise set apart by labels."""
        for part in parts:
            if part.kind == "answer" and said["reasoning"] and not said["answer"]:
                self._console.end_of_answer()
            said[part.kind] += part.text
            self._console.say(part.text, is_aside=part.kind == "reasoning")


def _path(text: str, command: str) -> Path:
    if not text:
        raise UsageError(f"{command} needs a file")
    return expanded(text)
