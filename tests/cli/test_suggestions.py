"""A newcomer's first words, as other programs of this kind are called, are answered with ours."""

from __future__ import annotations

import pytest

from edgespec.cli import entry

CASES = [
    ("run llama3", "edgespec has no command 'run'; did you mean `edgespec chat -m MODEL`?"),
    ("pull user/repo", "did you mean `edgespec models pull`?"),
    ("list", "did you mean `edgespec models list`?"),
    ("ls", "did you mean `edgespec models list`?"),
    ("chatt", "edgespec has no command 'chatt'; did you mean 'chat'?"),
    ("zzz", "edgespec has no command 'zzz': it is one of generate, chat, "),
    ("models pul x", "edgespec models has no command 'pul'; did you mean 'pull'?"),
    ("generate hello", "the argument 'hello' needs a flag; did you mean -p hello?"),
    ("generate it's", """did you mean -p 'it'"'"'s'?"""),
    ("chat llama3", "-m names a model's file, -hf fetches USER/REPO from Hugging Face"),
    ("chat target", "did you mean -m target?"),
    ("serve big.gguf", "did you mean -m big.gguf?"),
    ("serve user/repo", "did you mean -hf user/repo?"),
    ("generate -p x -m llama3.2:1b", "names of Ollama's library are not known here; -hf USER/REPO"),
    ("generate -p x -m hf.co/user/repo:Q4_0", "is fetched with -hf user/repo:Q4_0, or by"),
    ("plan --memory-budget 4", "--memory-budget 4: 4 alone means bytes; did you mean 4GiB?"),
    ("plan --memory-budget auto:1-2", "auto:1-2: 1 alone means bytes; did you mean 1GiB?"),
    ("plan --memory-budget auto:2GiB", "auto:2GiB: write auto, or auto:1GiB-4GiB"),
    ("plan --memory-budget auto:50%-120%", "at most 100% of the memory can be used"),
    ("plan --gpu-memory-budget auto:1-2", "auto:1-2: write auto, or 6GiB"),
    ("plan --memory-budget 6000", "did you mean 6000MiB?"),
]


@pytest.mark.parametrize(("words", "answer"), CASES)
def test_what_was_probably_meant_is_said(
    words: str, answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert entry.main(words.split()) == 2
    said = capsys.readouterr().err
    assert answer in said
    assert said.count("\n") == 1
