"""The file of a batch's answers: those of earlier runs, and lines that are appended to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from edgespec.batch.answered import Answered
from edgespec.batch.lines import BatchAnswer, is_begun_answer, parse_answer
from edgespec.errors import EdgespecError, UsageError
from edgespec.files.line_log import LineLog
from edgespec.files.named_errors import named

MAX_ANSWER_BYTES = 64 << 20
"""Longest output line that is read when resuming."""


def earlier_answers(log: LineLog, name: str) -> Answered:
    """Answers of earlier runs, after cutting off a torn last line.

    Raises UsageError for a file that is not the output of a batch, which is left unchanged.
    """

    def answers() -> Iterator[BatchAnswer]:
        for number, line in enumerate(log.lines(MAX_ANSWER_BYTES), 1):
            answer = parse_answer(line)
            if answer is None:
                raise foreign(number)
            yield answer

    def foreign(number: int | None = None) -> UsageError:
        place = "the last line" if number is None else f"line {number}"
        return UsageError(
            f"OUT {name}: {place} is not an answer of a batch: name another file, or delete it"
        )

    with named(f"OUT {name} cannot be read", EdgespecError):
        earlier = Answered(answers())
        if not is_begun_answer(log.torn):
            raise foreign()
        log.cut_torn_line()
    return earlier


def writer(log: LineLog, name: str) -> Callable[[bytes], None]:
    """A function that appends a line to OUT, and raises EdgespecError or BrokenPipeError."""

    def write(line: bytes) -> None:
        with named(f"OUT {name} cannot be written", EdgespecError):
            log.append(line)

    return write
