"""Builds the wheel and looks inside: nothing generic at its top, all data in its place."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
TOP_LEVEL = {"edgespec", "edgespec_runtimes"}


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder]
        built = subprocess.run(build, cwd=ROOT, check=False, capture_output=True, text=True)
        if built.returncode:
            print(built.stderr, file=sys.stderr)
            return 1
        wheel = next(Path(folder).glob("*.whl"))
        with zipfile.ZipFile(wheel) as archive:
            found = set(archive.namelist())
    mistakes = [*_unwanted(found), *(f"{name} is missing" for name in _wanted() - found)]
    for mistake in mistakes:
        print(f"wheel: {mistake}", file=sys.stderr)
    print(f"{wheel.name}: {len(found)} files, {len(mistakes)} mistakes")
    return 1 if mistakes else 0


def _unwanted(found: set[str]) -> list[str]:
    tops = {name.partition("/")[0] for name in found}
    generic = sorted(top for top in tops - TOP_LEVEL if not top.endswith(".dist-info"))
    waste = sorted(name for name in found if "__pycache__" in name or "_cache/" in name)
    return [f"{name} does not belong there" for name in (*generic, *waste)]


def _wanted() -> set[str]:
    manifest = tomllib.loads((ROOT / "models/embedded.toml").read_text(encoding="utf-8"))
    packages = tomllib.loads((ROOT / "models/packaged.toml").read_text(encoding="utf-8"))
    prompts = {"held_out_prompts.jsonl", "prompts.jsonl", "repeating_prompts.jsonl"}
    models = {"embedded.toml", "packaged.toml", "tokenizer.json", *prompts}
    models |= {
        file["file"]
        for role in manifest.values()
        if isinstance(role, dict)
        for file in role["files"]
    }
    models |= {model["head"]["file"] for model in packages.values() if "head" in model}
    wanted = {f"edgespec/_models/{name}" for name in models}
    wanted |= {f"edgespec/_configs/{path.name}" for path in (ROOT / "configs").glob("*.toml")}
    for top in ("edgespec", "runtimes/edgespec_runtimes"):
        for path in (ROOT / top).rglob("*.py"):
            wanted.add(path.relative_to(ROOT).as_posix().removeprefix("runtimes/"))
    for path in (ROOT / "edgespec/server/static").iterdir():
        wanted.add(path.relative_to(ROOT).as_posix())
    return wanted | {
        "edgespec/_pyinstaller/rthooks.dat",
        "edgespec/py.typed",
        "edgespec_runtimes/py.typed",
    }


if __name__ == "__main__":
    sys.exit(main())
