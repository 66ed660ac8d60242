"""The runs of `edgespec batch`: one for each model that lines of the file name.

Of several models one is in memory at a time, with all of the budget.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from edgespec.batch.answered import Answered, KeySet, LineGroups
from edgespec.batch.batch_run import BatchCounts, BatchRun, starting
from edgespec.batch.lines import ENVELOPE_BYTES, BatchRequest, numbered_lines
from edgespec.cli.console import Console
from edgespec.cli.invocation import settings_from
from edgespec.cli.model_list import PARALLEL, ListedModel, ModelList, for_requests
from edgespec.completions.protocols.dialect import Reply
from edgespec.completions.protocols.model_names import model_named, not_loaded
from edgespec.completions.refusals import Refusal
from edgespec.completions.request_limits import max_body_bytes
from edgespec.completions.running_request import Completion
from edgespec.completions.service import Completions
from edgespec.errors import EdgespecError, UsageError
from edgespec.files.named_errors import named

if TYPE_CHECKING:
    from edgespec.session.session import Session


@dataclass(frozen=True, slots=True)
class BatchFiles:
    """The file of requests, and its answers so far."""

    requests: BinaryIO
    name: str
    """Name of the file of requests; `-` for a pipe."""
    write: Callable[[bytes], None]
    """Appends a line to the answers."""
    earlier: Answered
    counts: BatchCounts
    seen: KeySet

    def lines(self, body_bytes: int) -> Iterator[tuple[int, bytes | None]]:
        """The lines from here on. Raises EdgespecError if they cannot be read."""
        with named(f"IN {self.name} cannot be read", EdgespecError):
            yield from numbered_lines(self.requests, body_bytes + ENVELOPE_BYTES)

    def run(
        self, loaded: Session, lines: Iterator[tuple[int, bytes | None]], model: str | None = None
    ) -> BatchRun:
        """A run over `lines`; `model` is the name in its answers, usually the session's."""
        # the server's defaults and limits
        completions = Completions(
            loaded,
            model,
            max_prompt_tokens=loaded.target.n_ctx,
            sampling=loaded.chat_sampling,
            limits_answers=True,
        )
        return BatchRun(
            starting(completions),
            lines,
            self.write,
            loaded.cancel,
            self.earlier,
            loaded.n_parallel,
            self.counts,
            self.seen,
        )


def runs_of_one(
    files: BatchFiles, args: argparse.Namespace, console: Console, template: str | None
) -> Generator[BatchRun]:
    """The run of the only model, which is in memory until the next run is asked for."""
    settings = for_requests(settings_from(args, n_parallel=PARALLEL), args.body_bytes)
    with settings.opened(console, template) as loaded:
        body_bytes = args.body_bytes or max_body_bytes(loaded.target.n_ctx)
        yield files.run(loaded, files.lines(body_bytes))


def runs_of_several(
    files: BatchFiles, args: argparse.Namespace, console: Console, template: str | None
) -> Generator[BatchRun]:
    """A run for each model that lines name, and one for lines that no model answers.

    Raises UsageError for a pipe, which can be read only once.
    """
    if not files.requests.seekable():
        raise UsageError(
            f"IN {files.name} is a pipe, and with several models the requests are read once for "
            "each: write them to a file"
        )
    known = ModelList(args, console, template, has_vectors=False, n_parallel=PARALLEL)

    def model_of(request: BatchRequest) -> ListedModel:
        name = request.body.get("model")
        model = model_named(known.models, name if isinstance(name, str) else None, embeds=False)
        if model.error is not None:
            raise not_loaded(model.name, model.error)
        return model

    def group_of(request: BatchRequest) -> int:
        try:
            return 1 + known.models.index(model_of(request))
        except Refusal:
            return 0

    def refuse(request: BatchRequest) -> tuple[Completion, Reply]:
        raise not_loaded(model_of(request).name, f"IN {files.name} was changed during the run")

    def lines(group: int) -> Iterator[tuple[int, bytes | None]]:
        files.requests.seek(0)
        return groups.of(group, files.lines(known.body_bytes))

    groups = LineGroups(files.lines(known.body_bytes), group_of, files.earlier)
    for number, model in enumerate(known.models, 1):
        if number in groups:
            with known.load_text(model, console.progress) as loaded:
                yield files.run(loaded, lines(number), model.name)
            del loaded
            gc.collect()  # sessions refer to themselves
    yield BatchRun(
        refuse,
        lines(0),
        files.write,
        lambda: None,
        files.earlier,
        so_far=files.counts,
        seen=files.seen,
    )
