"""A conversation that is saved replaces nothing but a conversation."""

import json
import os
import stat

import pytest

from edgespec.chat.dialogue import Dialogue
from edgespec.errors import UsageError
from sentences import refuses


@pytest.fixture
def dialogue() -> Dialogue:
    dialogue = Dialogue("Be brief.")
    dialogue.turns.append({"role": "user", "content": "Hello"})
    return dialogue


def test_it_is_saved_again_and_again_for_its_owner_alone(dialogue, tmp_path):
    file = tmp_path / "talk.json"
    for text in ("Hi", "Bye"):
        dialogue.turns.append({"role": "assistant", "content": text})
        dialogue.save(file)
    assert json.loads(file.read_text())["messages"][-1]["content"] == "Bye"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_another_file_stays_as_it_is(dialogue, tmp_path):
    file = tmp_path / "thesis.tex"
    file.write_text("years of work")
    with refuses(UsageError):
        dialogue.save(file)
    assert file.read_text() == "years of work"


def test_a_folder_and_a_fifo_are_refused(dialogue, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path, tmp_path / "fifo"):
        with refuses(UsageError):
            dialogue.save(path)


def test_what_is_forgotten_is_saved_and_the_system_message_stays(dialogue, tmp_path):
    for text in ("Hi", "Bye"):
        dialogue.turns.append({"role": "assistant", "content": text})
        dialogue.turns.append({"role": "user", "content": f"After {text}"})
    assert dialogue.forget()
    assert [message["content"] for message in dialogue.messages] == [
        "Be brief.",
        "After Hi",
        "Bye",
        "After Bye",
    ]
    dialogue.save(tmp_path / "talk.json")
    assert len(json.loads((tmp_path / "talk.json").read_text())["messages"]) == 6
    assert dialogue.forget()
    assert not dialogue.forget()
    dialogue.load(tmp_path / "talk.json")
    assert len(dialogue.messages) == 6


def test_half_a_surrogate_pair_of_another_program_stays_an_escape(tmp_path):
    """`/save` ended the conversation with a traceback, and it was lost."""
    file, content = (
        tmp_path / "theirs.json",
        '[{"role": "user", "content": "a", "name": "\\ud800"}]',
    )
    file.write_text(content)
    dialogue = Dialogue()
    dialogue.load(file)
    dialogue.save(tmp_path / "ours.json")
    saved = json.loads((tmp_path / "ours.json").read_text())
    assert saved["messages"] == json.loads(content)


def test_a_link_stays_a_link(dialogue, tmp_path):
    link = tmp_path / "link.json"
    link.symlink_to("talk.json")
    dialogue.save(link)
    assert link.is_symlink() and "Hello" in (tmp_path / "talk.json").read_text()
