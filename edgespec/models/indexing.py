"""Indexes a corpus with the vocabulary of a model, so that guesses can be looked up in it.

Knows which files and whose tokens; how an index is written is elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from edgespec import runtimes
from edgespec.corpus.building import Written, write_index
from edgespec.corpus.texts import TextFile, pieces, text_files
from edgespec.errors import UsageError
from edgespec.ports import Progress, Vocabulary
from edgespec.runtimes import ModelRequest, vocabulary_fingerprint, vocabulary_of

READING = "reading the corpus"
SORTING = "sorting it"


def index(
    paths: Sequence[Path],
    out: Path,
    model: Path,
    progress: Progress,
    overwrite: bool = False,
) -> Written:
    """Write `out`, an index of files and folders in the tokens of `model`; no weights are read.

    Raises UsageError for what cannot be indexed, ModelError for the model.
    """
    if out.exists() and not overwrite:
        raise UsageError(f"{out} exists: --force overwrites it")
    if out.is_dir() or not out.parent.is_dir():
        raise UsageError(f"{out} must be a file in a folder that exists")
    files = [file for file in text_files(paths) if not _is(file.path, out)]
    total = sum(file.size_bytes for file in files) or 1
    request = ModelRequest(
        path=model, owner="target", ctx_size=0, max_nodes=1, max_branches=1, n_threads=1
    )
    with ExitStack() as cleanup:
        prepared = runtimes.find(model).prepare(request)
        cleanup.callback(prepared.close)
        vocabulary = cleanup.enter_context(vocabulary_of(prepared))

        def texts() -> Iterator[Iterator[list[int]]]:
            done = 0
            for file in files:
                progress(READING, done / total)
                yield _tokens(file, vocabulary)
                done += file.size_bytes

        return write_index(
            out,
            texts(),
            prepared.info.n_vocab,
            vocabulary_fingerprint(prepared.tokens()),
            lambda share: progress(SORTING, share),
        )


def _tokens(file: TextFile, vocabulary: Vocabulary) -> Iterator[list[int]]:
    for piece in pieces(file):
        yield vocabulary.encode(piece, add_special=False)


def _is(path: Path, out: Path) -> bool:
    return out.exists() and path.samefile(out)
