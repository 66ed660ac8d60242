"""Formats descriptions of models, and what was made of them, as JSON values and as text.

Values in, text and dictionaries out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgespec.settings.units import format_size

if TYPE_CHECKING:
    from edgespec.models.adapting import AdaptationResult
    from edgespec.models.catalogue import KnownFile, KnownModel
    from edgespec.models.describe import ModelDescription
    from edgespec.models.pair_fit import PairFit
    from edgespec.models.self_draft import DraftMemory, SelfDraft
    from edgespec.session.own_draft import OwnDraft
    from edgespec.values import EnlargeReport, ExpertDetails, HeadDetails, OwnLayers

UNKNOWN = "?"


def list_report(models: Sequence[KnownModel], cache_folder: Path) -> dict[str, Any]:
    """Report of `models list` as JSON values."""
    return {
        "cache": str(cache_folder),
        "models": [
            {
                "name": model.name,
                "path": str(model.path),
                "embedded": model.is_embedded,
                "role": model.role,
                "format": model.format,
                "quantization": model.quantization,
                "parameters": model.parameters,
                "licence": model.licence,
                "size_bytes": model.size_bytes,
                "intact": _intact(model.files),
                "outdated": model.is_outdated,
                "files": [_file_report(file) for file in model.files],
                "problem": model.problem,
            }
            for model in models
        ],
    }


def list_table(models: Sequence[KnownModel]) -> list[str]:
    """Table with a line for each model."""
    head = ("name", "file", "size", "format", "quantisation", "parameters", "checksum")
    rows = [
        (
            model.name,
            model.path.name,
            format_size(model.size_bytes or model.to_fetch_bytes),
            model.format,
            model.quantization or UNKNOWN,
            _count(model.parameters),
            _checksum(model),
        )
        for model in models
    ]
    return aligned([head, *rows], n_left=len(head))


def list_notes(models: Sequence[KnownModel]) -> list[str]:
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


def show_report(described: ModelDescription) -> dict[str, Any]:
    """Report of `models show` as JSON values."""
    info, details, known = described.info, described.details, described.known
    return {
        "name": _name(described),
        "path": str(described.path),
        "embedded": known is not None and known.is_embedded,
        "format": details.format,
        "architecture": info.architecture,
        "layers": info.n_layers,
        "embedding_length": details.embedding_length,
        "heads": details.heads,
        "kv_heads": details.kv_heads,
        "vocabulary": info.n_vocab,
        "vocabulary_fingerprint": described.fingerprint,
        "context_length": details.context_length,
        "parameters": _parameters(described),
        "quantization": _quantization(described),
        "size_bytes": described.size_bytes,
        "intact": _intact(described.files),
        "files": [_file_report(file) for file in described.files],
        "licence": described.licence,
        "equals": details.equals,
        "experts": asdict(details.experts) if details.experts else None,
        "head": asdict(details.head) if details.head else None,
        "own_layers": asdict(details.own_layers) if details.own_layers else None,
    }


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


def show_table(described: ModelDescription) -> list[str]:
    """Lines of `models show`, one for each fact."""
    info, details = described.info, described.details
    facts = [
        ("name", _name(described)),
        ("path", str(described.path)),
        ("format", f"{details.format}, {_quantization(described) or UNKNOWN}"),
        ("architecture", info.architecture),
        ("layers", f"{info.n_layers:,}"),
        ("embedding", _exact(details.embedding_length)),
        ("heads", f"{_exact(details.heads)}, for keys and values {_exact(details.kv_heads)}"),
        ("vocabulary", f"{info.n_vocab:,} tokens, fingerprint {described.fingerprint}"),
        ("context", f"{_exact(details.context_length)} tokens"),
        ("parameters", _exact(_parameters(described))),
        ("size", f"{format_size(described.size_bytes)} ({described.size_bytes:,} bytes)"),
        *_checksums(described.files),
        ("licence", described.licence or UNKNOWN),
    ]
    if details.experts:
        facts.append(("experts", _experts(details.experts)))
    if details.head:
        facts.append(("guesses for", _head(details.head)))
    if details.own_layers:
        facts.append(("guesses", _own_layers(details.own_layers)))
    if details.equals:
        facts.append(("equals", f"{details.equals}: enlarged, it writes the same text"))
    return [f"{name:<12}  {value}" for name, value in facts]


def aligned(rows: Sequence[Sequence[str]], n_left: int) -> list[str]:
    """Rows aligned in columns, the first `n_left` to the left and the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = list(map(str.rjust, row, widths))
        cells[:n_left] = map(str.ljust, row[:n_left], widths)
        lines.append("  ".join(cells).rstrip())
    return lines


def enlarged_line(written: EnlargeReport) -> str:
    return (
        f"{written.path}: {format_size(written.size_bytes)}, {written.layers} layers, "
        f"{_count(written.parameters)} parameters"
    )


def _name(described: ModelDescription) -> str:
    return described.known.name if described.known else described.info.name


def _quantization(described: ModelDescription) -> str | None:
    known = described.known
    return described.details.quantization or (known.quantization if known else None)


def _parameters(described: ModelDescription) -> int | None:
    known = described.known
    return described.details.parameters or (known.parameters if known else None)


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


def _checksums(files: Sequence[KnownFile]) -> list[tuple[str, str]]:
    suffix = {True: " (as recorded)", False: " (differs from what is on record)", None: ""}
    return [
        (
            "sha256",
            f"{file.sha256 or 'missing'}{suffix[file.is_intact]}"
            + (f" {file.path.name}" if len(files) > 1 else ""),
        )
        for file in files
    ]


def _file_report(file: KnownFile) -> dict[str, Any]:
    return {
        "path": str(file.path),
        "size_bytes": file.size_bytes,
        "sha256": file.sha256,
        "intact": file.is_intact,
    }


def _count(number: int | None) -> str:
    """A rounded number with unit, such as `8.1 M`."""
    if number is None:
        return UNKNOWN
    return f"{number / 1e9:.2f} B" if number >= 1e9 else f"{number / 1e6:.1f} M"


def _exact(number: int | None) -> str:
    return UNKNOWN if number is None else f"{number:,}"


def drafts_table(compared: Sequence[SelfDraft], out: Path) -> list[str]:
    """Table of the candidate drafts, the best and written one first."""
    lines = [f"{'type':<8}{'layers':>7}{'size':>12}{'top-1 agreement':>18}"]
    lines += [
        f"{draft.type:<8}{len(draft.layers):>7}{format_size(draft.size_bytes):>12}"
        f"{100 * draft.agreement:>16.1f} %"
        for draft in compared
    ]
    best = compared[0]
    kept = ", ".join(map(str, best.layers))
    return [*lines, f"{out}: {best.type}, the target's layers {kept}", ""]


def own_draft_lines(made: OwnDraft, target: Path, out: Path) -> list[str]:
    """Lines about a draft made from its target, with what was measured."""
    return [
        f"{out}: {target.name} in {made.kind}, {format_size(made.size_bytes)}",
        f"{made.tokens_per_pass:.2f} tokens per pass, {made.tokens_per_s:.2f} tokens/s under "
        f"{format_size(made.budget_bytes)}; {made.alone_tokens_per_s:.2f} without a draft",
        f"{made.missing_share:.1%} of the texts' tokens are not among those that it can guess",
    ]


def room_line(room: DraftMemory) -> str:
    """One line about the memory for a draft beside the target."""
    return (
        f"Of the budget of {format_size(room.budget_bytes)} the draft takes "
        f"{format_size(room.draft_bytes)}, weights, KV and buffers; the target leaves room for "
        f"{format_size(room.max_bytes)}. A pass reads {format_size(room.read_bytes)}, without "
        f"the draft {format_size(room.read_alone_bytes)}.\n"
    )


def adapted_lines(
    adapted: AdaptationResult, before: PairFit, after: PairFit, out: Path
) -> list[str]:
    """Lines about the training of an adapted draft, and its effect."""
    old, new = before.largest_tree.tokens_per_pass, after.largest_tree.tokens_per_pass
    lines = [
        f"Learnt {adapted.n_tokens:,} tokens of {adapted.n_texts} answers, in "
        f"{adapted.n_corrections:,} places the target's distribution.",
        f"Tokens per pass with {after.largest_tree.drafted_nodes} guesses of the draft: {old:.2f} "
        f"before, {new:.2f} after ({100 * (new / old - 1):+.0f} %).",
        f"{out}: use it with -md {out}",
    ]
    if new <= old:
        lines[-1] = f"{out} guesses these texts no better: more or other texts may help."
    return lines
