"""`edgespec models list` and `show`: what is known of models."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from edgespec.cli.console import Console
from edgespec.cli.flags import groups
from edgespec.files import cache_folder
from edgespec.models import catalogue
from edgespec.reports import UNKNOWN, Column, Report, Row, Table
from edgespec.settings.units import format_size

if TYPE_CHECKING:
    from edgespec.models.catalogue import KnownModel
    from edgespec.models.describe import ModelDescription
    from edgespec.values import ExpertDetails, HeadDetails, OwnLayers

P = TypeVar("P")


def add_list(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "List the models that come with edgespec, those in its\n"
        "cache folder ($XDG_CACHE_HOME/edgespec or ~/.cache/edgespec), and those that -hf fetched."
    )
    groups.add_plain_output(parser)


def run_list(args: argparse.Namespace, console: Console) -> None:
    from edgespec.models.describe import listing

    models = [*listing(), *of_hub()]
    table = Table(_COLUMNS, models)
    console.result(args, Report(Row("cache", cache_folder.folder()), Row("models", table)))
    for model in models if "json" not in args else ():
        if model.problem:
            console.note(model.problem)


def of_hub() -> Iterator[KnownModel]:
    """Models in the cache that Hugging Face's tools share."""
    with suppress(ImportError, OSError):
        from edgespec.hub.fetch import Hub

        for name, model, (path, *others) in Hub(token=None).models():
            yield catalogue.KnownModel(
                name=str(name),
                path=path,
                files=(path, *others),
                format="onnx" if path.suffix == ".onnx" else "gguf",
                quantization=model.quant,
            )


def add_show(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Show a model's shape, quantisation, size, licence and the fingerprint of its\n"
        "vocabulary. Two models with the same fingerprint can be paired."
    )
    parser.add_argument("model", metavar="MODEL", help="a name or a path")
    groups.add_plain_output(parser)


def run_show(args: argparse.Namespace, console: Console) -> None:
    from edgespec.models.describe import describe

    described = describe(catalogue.find(args.model))
    console.result(args, Report(*_facts(described)))


def _facts(described: ModelDescription) -> Iterator[Row]:
    """Facts about one model."""
    info, details, known = described.info, described.details, described.known
    quantization = details.quantization or (known.quantization if known else None)
    parameters = details.parameters or (known.parameters if known else None)
    size = described.size_bytes
    yield Row("name", known.name if known else info.name, label="name")
    yield Row("path", described.path, label="path")
    yield Row("embedded", known is not None and known.is_embedded)
    yield Row("format", details.format, f"{details.format}, {quantization or UNKNOWN}", "format")
    yield Row("architecture", info.architecture, label="architecture")
    yield Row("layers", info.n_layers, label="layers")
    yield Row("embedding_length", details.embedding_length, label="embedding")
    yield Row("heads", details.heads, label="heads")
    yield Row("kv_heads", details.kv_heads, label="KV heads")
    yield Row("vocabulary", info.n_vocab, label="vocabulary")
    yield Row("vocabulary_fingerprint", described.fingerprint, label="fingerprint")
    yield Row("context_length", details.context_length, label="context")
    yield Row("parameters", parameters, label="parameters")
    yield Row("quantization", quantization)
    yield Row("size_bytes", size, f"{format_size(size)} ({size:,} bytes)", "size")
    yield Row("files", list(described.files))
    yield Row("licence", described.licence, label="licence")
    yield _part("equals", details.equals, "{}: enlarged, it writes the same text".format, "equals")
    yield _part("experts", details.experts, _experts, "experts")
    yield _part("head", details.head, _head, "guesses for")
    yield _part("own_layers", details.own_layers, _own_layers, "guesses")


def _part(key: str, part: P | None, text: Callable[[P], str], label: str) -> Row:
    """The row of what not every model has."""
    return Row(key, part, text, label) if part else Row(key)


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


def rounded(number: int | None) -> str:
    """A rounded number with unit, such as `8.1 M`."""
    if number is None:
        return UNKNOWN
    return f"{number / 1e9:.2f} B" if number >= 1e9 else f"{number / 1e6:.1f} M"


_COLUMNS: list[Column[KnownModel]] = [
    Column("name", "name", is_left=True),
    Column("path"),
    Column("embedded", value=lambda model: model.is_embedded),
    Column("role"),
    Column("size_bytes"),
    Column("", "size", lambda model: model.size_bytes or model.to_fetch_bytes, format_size),
    Column("format", "format", is_left=True),
    Column("quantization", "type", is_left=True),
    Column("parameters", "parameters", format=rounded),
    Column("licence"),
    Column(
        "", "to fetch", lambda m: f"models pull {m.name}" * bool(m.to_fetch_bytes), is_left=True
    ),
    Column("files"),
    Column("problem"),
]
