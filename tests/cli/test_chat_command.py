"""`edgespec chat`: a conversation through a pipe and in a terminal, and its commands."""

import io
import json
import os
import pty
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Protocol

import pytest

from edgespec.cli import command_line
from edgespec.cli.commands import chat_input

TEMPLATE = """\
{%- for m in messages %}# {{ m.role }}: {{ m.content }}\n{% endfor %}
{%- if add_generation_prompt %}def {% endif %}"""
CHAT = [sys.executable, "-m", "edgespec", "chat", "--chat-template", TEMPLATE, "-n", "8"]


class ChatRun(Protocol):
    def __call__(
        self, lines: str | bytes, *arguments: str, code: int = 0, typed: bool = False
    ) -> tuple[str, str]: ...


@pytest.fixture
def chat(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> ChatRun:
    """Runs `edgespec chat` with lines from a pipe, or `typed`; what it wrote to both outputs."""

    def run(
        lines: str | bytes, *arguments: str, code: int = 0, typed: bool = False
    ) -> tuple[str, str]:
        read = lines.encode() if isinstance(lines, str) else lines
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(read)))
        if typed:
            monkeypatch.setattr(chat_input, "is_terminal", lambda stdin: True)
            monkeypatch.setattr(
                chat_input, "lines", lambda history: iter(read.decode().split("\n"))
            )
        ended = command_line.main([*CHAT[3:], "--no-draft", *arguments])
        out, said = capsys.readouterr()
        assert ended == code, said
        return out, said

    return run


def test_every_line_is_a_message_and_gets_an_answer(chat):
    out, _ = chat("write gcd\nwrite lcm\n", "--quiet")
    assert len(out.splitlines()) >= 2


def test_a_conversation_is_saved_and_gone_on_with(chat, tmp_path):
    file = tmp_path / "talk.json"
    talk = f"write gcd\n/save {file}\n/load {file}\n/exit\nnever read\n"
    _, said = chat(talk, "--system", "Be brief.", typed=True)
    assert f"saved: {file}\n" in said
    assert f"loaded: {file}, 3 messages\n" in said
    messages = json.loads(file.read_text())["messages"]
    assert [message["role"] for message in messages] == ["system", "user", "assistant"]
    chat(f"/load {file}\nagain\n/save {file}\n", typed=True)
    assert len(json.loads(file.read_text())["messages"]) == 5


def test_commands_change_the_conversation(chat, tmp_path):
    file = tmp_path / "talk.json"
    lines = f"write gcd\n/system Be brief.\n/save {file}\nwrite lcm\n/reset\n/save {file}\n"
    chat(lines, typed=True)
    assert json.loads(file.read_text())["messages"] == [{"role": "system", "content": "Be brief."}]


@pytest.mark.parametrize("ending", ["/exit", "/bye", "exit"])
def test_what_people_type_to_leave_ends_a_conversation(chat, ending):
    assert chat(f"/system x\n{ending}\nnever answered\n", typed=True)[0] == ""


def test_a_second_turn_reads_only_what_is_new(chat):
    _, said = chat("write a function that adds two numbers\ngo on\n/stats\n", typed=True)
    reused = next(line for line in said.splitlines() if line.startswith("reused: "))
    assert int(reused.split()[1]) > 10


def test_a_mistake_is_one_line_and_the_conversation_goes_on(chat):
    complaints = {
        "/nothing": "/nothing is not a command: /system",
        "/save": "/save needs a file",
        "/load /nowhere": "/nowhere cannot be read",
        "/stats": "no answer yet",
        "word " * 9000: "context",
    }
    out, said = chat("\n".join([*complaints, "write gcd\n"]), "--quiet", typed=True)
    assert out
    for complaint, line in zip(complaints.values(), said.splitlines(), strict=True):
        assert complaint in line


def test_a_line_that_is_no_text_ends_a_pipe_and_is_said(chat):
    out, said = chat(b"x\xff\n", "--quiet", code=2)
    assert out == ""
    assert "stdin: not UTF-8 at byte 1" in said


def test_a_model_without_a_template_is_refused_before_anything_is_asked(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"Hello\n")))
    assert command_line.main(["chat", "-m", "embedded", "--quiet"]) == 3
    (said,) = capsys.readouterr().err.splitlines()
    assert "has no chat template" in said


def test_reasoning_is_set_apart(chat):
    """A grammar holds behind reasoning that the prompt opens; here the answer opens it."""
    template = TEMPLATE + "{# <think> </think> #}"
    grammar = "start: /<think>[a-z]{3}<\\/think>[0-9]{2}/"
    out, _ = chat("Hello\n", "--chat-template", template, "--grammar", grammar, "-n", "128")
    thought, answer = out.splitlines()
    assert len(thought) == 3
    assert thought.isalpha()
    assert answer.isdigit()


class PseudoTerminal:
    """A conversation in a pseudo-terminal."""

    def __init__(self, cache: Path) -> None:
        self._master, slave = pty.openpty()
        environment = os.environ | {"TERM": "dumb", "XDG_CACHE_HOME": str(cache)}
        command = [*CHAT[:-1], "3000", "--grammar", "start: /(ab){5000}/"]
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=environment, close_fds=True
        )
        os.close(slave)
        self.seen = ""
        self._read = 0

    def until(self, text: str) -> None:
        """Read on until `text` has come after what was waited for before."""
        while (found := self.seen.find(text, self._read)) < 0:
            readable, _, _ = select.select([self._master], [], [], 60)
            assert readable, f"{text!r} did not come after {self.seen!r}"
            self.seen += os.read(self._master, 4096).decode(errors="replace")
        self._read = found + len(text)

    def write(self, text: str) -> None:
        os.write(self._master, text.encode())

    def close(self) -> int:
        try:
            while os.read(self._master, 4096):
                pass
        except OSError:  # the other side is closed
            pass
        os.close(self._master)
        return self.process.wait(60)


@pytest.mark.slow
def test_ctrl_c_stops_the_answer_and_not_the_program(tmp_path):
    terminal = PseudoTerminal(tmp_path)
    terminal.until("/help lists keys and commands")
    terminal.until("> ")
    for _ in range(2):
        terminal.write("write gcd\r")
        terminal.until("gcd")
        terminal.until("abab")
        terminal.process.send_signal(signal.SIGINT)
        terminal.until("> ")
        terminal.write("/stats\r")
        terminal.until("ended by cancelled")
        terminal.until("> ")
    terminal.write("/exit\r")
    assert terminal.close() == 0
    assert "write gcd" in (tmp_path / "edgespec" / "chat_history").read_text()


def test_a_conversation_goes_on_without_being_read_again(chat, tmp_path):
    cache, talk = tmp_path / "cache", tmp_path / "talk.json"
    cached = ("--prompt-cache", str(cache))
    asked = "write a function that adds two numbers and then another one that does it again" * 8
    chat(f"{asked}\n/save {talk}\n", *cached, typed=True)
    _, said = chat(f"/load {talk}\ngo on\n/stats\n", *cached, typed=True)
    reused = next(line for line in said.splitlines() if line.startswith("reused: "))
    assert int(reused.split()[1]) >= 64
