"""`-hf`, `-hfd` and `models pull` on the command line, against a hub on this machine."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from edgespec.models.embedded import embedded_pair
from hub_server import FakeHub, serving
from sentences import hold_sentence

REPO = "user/tiny-GGUF"


@pytest.fixture(scope="module")
def hub():
    pair = embedded_pair()
    files = {"tiny-Q8_0.gguf": pair.target.read_bytes(), "tiny-Q4_0.gguf": b"GGUF"}
    draft = {"draft-Q8_0.gguf": pair.draft.read_bytes()}
    with serving(FakeHub({REPO: files, "user/draft-GGUF": draft})) as running:
        yield running


def run(hub: FakeHub, cache: Path, *arguments: str, **environment: str):
    env = os.environ | {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(cache)} | environment
    env.pop("HF_TOKEN", None)
    command = [sys.executable, "-m", "edgespec", *arguments]
    return subprocess.run(
        command, check=False, env=env, capture_output=True, text=True, timeout=120
    )


@pytest.fixture(scope="module")
def pulled(hub, tmp_path_factory):
    """A cache with the model, and how it was filled."""
    cache = tmp_path_factory.mktemp("pulled")
    return cache, run(hub, cache, "models", "pull", f"{REPO}:q8_0")


@pytest.mark.slow
def test_pull_prints_where_the_model_is(hub, pulled):
    _, done = pulled
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).read_bytes() == hub.repos[REPO]["tiny-Q8_0.gguf"]


@pytest.mark.slow
def test_the_list_has_what_was_pulled(hub, pulled):
    cache, _ = pulled
    listed = json.loads(run(hub, cache, "models", "list", "--json").stdout)["models"]
    (model,) = [model for model in listed if model["name"] == f"{REPO}:Q8_0"]
    assert model["size_bytes"] == len(hub.repos[REPO]["tiny-Q8_0.gguf"])


@pytest.mark.slow
def test_a_program_names_its_model_on_a_hub(hub, tmp_path):
    program = "import sys, edgespec; print(edgespec.plan(sys.argv[1]).budget_bytes)"

    def said(name: str) -> str:
        env = os.environ | {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path)}
        command = [sys.executable, "-c", program, name]
        done = subprocess.run(command, check=False, env=env, capture_output=True, text=True)
        return (done.stdout or done.stderr).splitlines()[-1]

    assert int(said(f"{REPO}:Q8_0")) > 0
    assert f"is fetched as {REPO}:QUANT, or as hf.co/{REPO}" in said(REPO)
    assert int(said(f"https://hf.co/{REPO}/blob/main/tiny-Q8_0.gguf")) > 0


@pytest.mark.slow
def test_a_pair_named_on_a_hub_writes_what_its_files_write(hub, tmp_path):
    prompt = ("generate", "-p", "def f(", "-n", "12")
    fetched = run(hub, tmp_path, *prompt, "-hf", f"{REPO}:Q8_0", "-hfd", "user/draft-GGUF")
    assert fetched.returncode == 0, fetched.stderr
    assert "user/draft-GGUF is draft-Q8_0" in fetched.stderr
    assert fetched.stdout == run(hub, tmp_path, *prompt).stdout


@pytest.mark.slow
def test_offline_the_cache_is_used_and_said(hub, pulled):
    cache, _ = pulled
    done = run(hub, cache, "models", "pull", REPO, HF_HUB_OFFLINE="1")
    assert "HF_HUB_OFFLINE is set; the model in the cache is used" in done.stderr
    assert done.stdout.strip().endswith("tiny-Q8_0.gguf")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "exit_code"),
    [
        (("models", "pull", "user/nothing"), 1),
        (("models", "pull", f"{REPO}:Q2_K"), 3),
        (("models", "pull", "nothing"), 2),
        (("generate", "-p", "a", "-hf", REPO, "-m", "x.gguf"), 2),
    ],
)
def test_what_cannot_be_fetched_is_one_line(hub, tmp_path, arguments, exit_code):
    done = run(hub, tmp_path, *arguments)
    assert done.returncode == exit_code
    hold_sentence(done.stderr)
