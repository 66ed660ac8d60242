#!/usr/bin/env bash
# Does what README.md and docs/getting-started.md say, word for word, in an empty clone with an empty
# home: each block of commands is run, and each line of output that a page shows has to appear, but for
# its numbers. It ends with a real model's answer. `make test` and what needs root are left out.
# Usage: tests/first_hour.sh [FOLDER]
#   FIRST_HOUR_MODEL=smollm2  takes another real model than the pages, which is smaller to download
#   PIP_CACHE_DIR             pip's cache, so that llama.cpp is not built again
set -euo pipefail
source=$(cd "$(dirname "$0")/.." && pwd)
folder=${1:-$(mktemp -d)}
unset XDG_CACHE_HOME VIRTUAL_ENV PYTHONPATH
python=$source/.venv/bin/python
[ -x "$python" ] || python=python3
export PIP_CACHE_DIR=${PIP_CACHE_DIR:-$("$python" -m pip cache dir)}
git clone --quiet "$source" "$folder/edgespec"
export HOME=$folder/home
mkdir -p "$HOME"
cd "$folder/edgespec"
exec python3 - README.md docs/getting-started.md <<'PYTHON'
import os
import re
import subprocess
import sys
import time
from pathlib import Path

MODEL = os.environ.get("FIRST_HOUR_MODEL")
BLOCK = re.compile(r"^```(sh|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LEFT_OUT = re.compile(r"^make test$|^sudo ", re.MULTILINE)
QUESTION = "Write a Python function that counts the words of a file.\n"


def shape(line):
    """The line without its numbers, durations and folders."""
    line = re.sub(r"~?[\w./-]*/(?=[\w.-]+\.gguf)", "", line.strip())
    return re.sub(r"\s+", " ", re.sub(r"\d[\d.,]*", "#", line))


def told(block):
    """The lines of a page's block without what a model wrote, which the processor decides, too."""
    is_text = False
    for line in block.splitlines():
        if not is_text:
            yield line
        is_text = line.startswith("--- ") or (is_text and line.strip() != "...")


def run(commands):
    """Run a block as a user would, and return what it wrote."""
    print("$ " + commands.strip().replace("\n", "\n$ "), flush=True)
    began = time.monotonic()
    script = "set -e\n[ -f .venv/bin/activate ] && . .venv/bin/activate\n" + commands
    done = subprocess.run(
        ["bash", "-c", script], input=QUESTION, text=True, capture_output=True, timeout=1500
    )
    written = done.stdout + done.stderr
    if done.returncode:
        sys.exit(f"{written[-4000:]}\nexit code {done.returncode}")
    print(f"{written[-1500:]}\n[{time.monotonic() - began:.0f} s]", flush=True)
    return written


def own_pair():
    """The files of a pair that the pages call big.gguf and small.gguf."""
    (big,) = Path.home().glob(".cache/edgespec/embedded-*.gguf")
    for name, path in (("big.gguf", big), ("small.gguf", Path("models/edgespec-draft-q8_0.gguf"))):
        if not Path(name).exists():
            Path(name).symlink_to(path.resolve())


answered = ""
for page in sys.argv[1:]:
    written = ""
    for kind, text in BLOCK.findall(Path(page).read_text(encoding="utf-8")):
        if kind == "sh":
            commands = "\n".join(
                line for line in text.splitlines() if not LEFT_OUT.search(line)
            )
            if re.search(r"^sudo ", text, re.MULTILINE) or not commands.strip():
                written = ""
                continue
            if re.search(r"\b(big|small)\.gguf", commands):
                own_pair()
            real = MODEL if "qwen2.5-coder" in commands else None
            written = run(commands.replace("qwen2.5-coder", real) if real else commands)
            if " chat " in commands:
                answered = written
            if real:
                written = ""
        elif written:
            shapes = {shape(line) for line in written.splitlines()}
            missing = [
                line for line in told(text)
                if shape(line) and line.strip() != "..." and shape(line) not in shapes
            ]
            if missing:
                sys.exit(f"{page} shows what was not written:\n" + "\n".join(missing))
if not re.search(r"\d+ tokens, [\d.]+ tokens/s", answered):
    sys.exit("no real model has answered")
print("every command and every line of output is as the pages say")
PYTHON
