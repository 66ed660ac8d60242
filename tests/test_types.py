"""Public names pass a strict type checker, and show themselves to people."""

from __future__ import annotations

import ast
import inspect
import pydoc
import re
import subprocess
import sys
from pathlib import Path

import pytest

import edgespec
from edgespec.settings import config
from edgespec.settings.config import LoadSettings

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "docs/getting-started.md")
EXAMPLE = """
from pathlib import Path

import edgespec

settings = edgespec.LoadSettings(
    model="big.gguf",
    draft=Path("small.gguf"),
    memory_budget="4GiB",
    cache_type_k="q8_0",
    n_gpu_layers=3,
)
warm = edgespec.SamplingParams(temperature=0.7, seed=3, logit_bias={5: -1.0})
with edgespec.open_trace("trace.json") as trace, edgespec.load(settings, trace=trace) as session:
    for event in session.stream("Once", warm, stop="end"):
        print(event.text)
    messages = [{"role": "user", "content": "Hello"}]
    print(session.chat(messages).result.text)
    print(session.create_chat_completion(messages)["choices"])
    with session.create_chat_completion(messages, stream=True) as chunks:
        for chunk in chunks:
            print(chunk["choices"])
    print(session.create_completion("Once", max_tokens=3)["usage"])
with edgespec.load("big.gguf") as session:
    for result in session.generate_many(["Once", [1, 2]], max_tokens=3):
        print(result.text)
    print(session.generate("Once", grammar=edgespec.json_schema({"type": "string"})).text)
"""


@pytest.mark.long
def test_the_python_of_pages_and_examples_passes_a_strict_type_checker(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    blocks = [EXAMPLE]
    for page in PAGES:
        blocks += re.findall(
            r"^```python\n(.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL
        )
    assert len(blocks) > len(PAGES)
    blocks += [path.read_text() for path in sorted((ROOT / "examples").glob("*.py"))]
    for number, block in enumerate(blocks):
        (tmp_path / f"example_{number}.py").write_text(block)
    known = ["--cache-dir", f".mypy_cache/{sys.platform}"]  # `make check` has typed the package
    command = [sys.executable, "-m", "mypy", "--strict", *known, str(tmp_path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout


def test_the_types_of_load_settings_know_every_setting() -> None:
    tree = ast.parse(inspect.getsource(config))
    (settings,) = (
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and node.name == LoadSettings.__name__
    )
    (init,) = (
        node
        for node in ast.walk(settings)
        if isinstance(node, ast.FunctionDef) and node.name == "__init__"
    )
    assert {argument.arg for argument in init.args.kwonlyargs} == set(LoadSettings.model_fields)


def test_dir_and_help_show_the_public_names() -> None:
    assert dir(edgespec) == sorted(edgespec.__all__)
    shown = pydoc.render_doc(edgespec, renderer=pydoc.plaintext)
    assert [name for name in edgespec.__all__ if name not in shown] == []
