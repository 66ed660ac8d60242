"""`edgespec models list`, `show` and `path`: what is known of models."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, TypeVar

from edgespec.cli.console import Console
from edgespec.cli.flags import groups
from edgespec.files import cache_folder
from edgespec.models import catalogue
from edgespec.settings.units import format_size
from edgespec.tables import UNKNOWN, Column, Fact, Facts, Table

if TYPE_CHECKING:
    from edgespec.models.catalogue import KnownFile, KnownModel
    from edgespec.models.describe import ModelDescription
    from edgespec.values import ExpertDetails, HeadDetails, OwnLayers

P = TypeVar("P", "ExpertDetails", "HeadDetails", "OwnLayers")


def add_list(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "List the models that come with edgespec, with the result of checking them, and those in\n"
        "its cache folder ($XDG_CACHE_HOME/edgespec or ~/.cache/edgespec)."
    )
    groups.flag(
        parser, "--hash", "also compute the checksums of cached models, which reads them whole"
    )
    groups.add_plain_output(parser)


def run_list(args: argparse.Namespace, console: Console) -> None:
    from edgespec.models.describe import listing

    table = Table(_COLUMNS, listing("hash" in args, console.progress))
    console.end_of_progress()
    report = {"cache": str(cache_folder.folder()), "models": table.as_list()}
    console.result(args, report, table.lines(console.width))
    if "json" not in args:
        for note in _notes(table.items):
            console.note(note)


def add_show(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Show a model's shape, quantisation, size, checksum, licence and the fingerprint of its\n"
        "vocabulary. Two models with the same fingerprint can be paired."
    )
    parser.add_argument("model", metavar="MODEL", help="a name or a path")
    groups.add_plain_output(parser)


def run_show(args: argparse.Namespace, console: Console) -> None:
    from edgespec.models.describe import describe

    described = describe(catalogue.find(args.model), console.progress)
    console.end_of_progress()
    facts = Facts(list(_facts(described)))
    console.result(args, facts.as_dict(), facts.lines())


def add_path(parser: argparse.ArgumentParser) -> None:
    parser.description = "Print the path of a model, and nothing else."
    parser.epilog = 'example:\n  edgespec generate -m "$(edgespec models path target)"'
    parser.add_argument("model", metavar="MODEL", help="a name or a path")
    groups.flag(parser, "--json", "one JSON object on stdout")


def run_path(args: argparse.Namespace, console: Console) -> None:
    path = str(catalogue.find(args.model))
    console.result(args, {"path": path}, [path])


def _notes(models: Sequence[KnownModel]) -> list[str]:
    """Notes about damaged models in the list, with advice."""
    notes = []
    for model in models:
        if model.problem:
            notes.append(model.problem)
        if model.is_outdated:
            notes.append(
                f"{model.path} was made from an earlier embedded target and is not used any "
                "more: delete it"
            )
    if any(_intact(model.files) is False for model in models):
        notes.append("an embedded model is damaged: install edgespec again")
    return notes


def _facts(described: ModelDescription) -> Iterator[Fact]:
    """Facts about one model."""
    info, details, known = described.info, described.details, described.known
    quantization = details.quantization or (known.quantization if known else None)
    parameters = details.parameters or (known.parameters if known else None)
    size = described.size_bytes
    yield Fact("name", "name", known.name if known else info.name)
    yield Fact("path", "path", str(described.path))
    yield Fact("embedded", "", known is not None and known.is_embedded)
    yield Fact("format", "format", details.format, f"{details.format}, {quantization or UNKNOWN}")
    yield Fact("architecture", "architecture", info.architecture)
    yield Fact("layers", "layers", info.n_layers)
    yield Fact("embedding_length", "embedding", details.embedding_length)
    yield Fact("heads", "heads", details.heads)
    yield Fact("kv_heads", "KV heads", details.kv_heads)
    yield Fact("vocabulary", "vocabulary", info.n_vocab)
    yield Fact("vocabulary_fingerprint", "fingerprint", described.fingerprint)
    yield Fact("context_length", "context", details.context_length)
    yield Fact("parameters", "parameters", parameters)
    yield Fact("quantization", "", quantization)
    yield Fact("size_bytes", "size", size, f"{format_size(size)} ({size:,} bytes)")
    yield Fact("intact", "", _intact(described.files))
    yield Fact("files", "", Table(_FILE_COLUMNS, described.files).as_list())
    for file in described.files:
        name = f" {file.path.name}" if len(described.files) > 1 else ""
        yield Fact("", "sha256", text=f"{file.sha256 or 'missing'}{_FITS[file.is_intact]}{name}")
    yield Fact("licence", "licence", described.licence)
    if details.equals:
        text = f"{details.equals}: enlarged, it writes the same text"
        yield Fact("equals", "equals", details.equals, text)
    else:
        yield Fact("equals", "", None)
    yield _part("experts", "experts", details.experts, _experts)
    yield _part("head", "guesses for", details.head, _head)
    yield _part("own_layers", "guesses", details.own_layers, _own_layers)


def _part(key: str, label: str, part: P | None, text: Callable[[P], str]) -> Fact:
    """The fact of a part that not every model has."""
    if part is None:
        return Fact(key, "", None)
    return Fact(key, label, asdict(part), text(part))


def _experts(experts: ExpertDetails) -> str:
    return (
        f"{experts.experts} in a layer, {experts.used} for a token: {format_size(experts.nbytes)} "
        f"in all; a token needs {format_size(experts.token_bytes)} of the weights"
    )


def _head(head: HeadDetails) -> str:
    layers = ", ".join(map(str, head.layers))
    borrows = f"; takes {' and '.join(head.borrows)} from its file" if head.borrows else ""
    return (
        f"a target of the same vocabulary, {head.hidden_size:,} wide: reads the inputs of its "
        f"layers {layers}{borrows}"
    )


def _own_layers(own: OwnLayers) -> str:
    if own.obstacle:
        return f"its layers for guessing (MTP) stay unused: {own.obstacle}"
    return "a layer of its own can guess for it (MTP): no flag names it"


def _intact(files: Sequence[KnownFile]) -> bool | None:
    """False if any file differs from its recorded checksum; None if none is recorded."""
    states = {file.is_intact for file in files}
    return False if False in states else None if None in states or not states else True


def _checksum(model: KnownModel) -> str:
    if model.to_fetch_bytes:
        return f"to fetch: models pull {model.name}"
    if any(file.size_bytes is None for file in model.files):
        return "missing"
    match _intact(model.files):
        case True:
            return "as recorded"
        case False:
            return "differs"
    if model.is_outdated:
        return "outdated"
    if any(file.expected_sha256 for file in model.files):
        return "not read: --hash"
    shas = [file.sha256[:12] for file in model.files if file.sha256]
    return shas[0] if len(shas) == 1 else "none on record"


def rounded(number: int | None) -> str:
    """A rounded number with unit, such as `8.1 M`."""
    if number is None:
        return UNKNOWN
    return f"{number / 1e9:.2f} B" if number >= 1e9 else f"{number / 1e6:.1f} M"


_FITS = {True: " (as recorded)", False: " (differs from what is on record)", None: ""}
_FILE_COLUMNS: list[Column[KnownFile]] = [
    Column("path", "", lambda file: str(file.path)),
    Column("size_bytes", "", lambda file: file.size_bytes),
    Column("sha256", "", lambda file: file.sha256),
    Column("intact", "", lambda file: file.is_intact),
]
_COLUMNS: list[Column[KnownModel]] = [
    Column("name", "name", lambda model: model.name, is_left=True),
    Column("path", "", lambda model: str(model.path)),
    Column("embedded", "", lambda model: model.is_embedded),
    Column("role", "", lambda model: model.role),
    Column(
        "size_bytes",
        "size",
        lambda model: model.size_bytes,
        lambda model: format_size(model.size_bytes or model.to_fetch_bytes),
    ),
    Column("format", "format", lambda model: model.format, is_left=True),
    Column("quantization", "type", lambda model: model.quantization, is_left=True),
    Column("parameters", "parameters", lambda m: m.parameters, lambda m: rounded(m.parameters)),
    Column("licence", "", lambda model: model.licence),
    Column("intact", "checksum", lambda m: _intact(m.files), _checksum, is_left=True),
    Column("outdated", "", lambda model: model.is_outdated),
    Column("files", "", lambda model: Table(_FILE_COLUMNS, model.files).as_list()),
    Column("problem", "", lambda model: model.problem),
]
