"""Requests of a batch: those that were seen, and those with an answer in its file."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b

from edgespec.batch.lines import BatchAnswer, is_begun_answer, parse_answer
from edgespec.errors import EdgespecError, UsageError
from edgespec.files.line_log import LineLog
from edgespec.files.named_errors import named


class KeySet:
    """A set of strings that stores 8-byte digests; among a million strings, a collision has a
    probability of 3 in 100 million."""

    def __init__(self) -> None:
        self._digests = array("Q")
        """In order."""

    def __contains__(self, text: str) -> bool:
        at, digest = self._place(text)
        return self._digests[at : at + 1] == array("Q", [digest])

    def add(self, text: str) -> bool:
        """Add `text`; True if it is new."""
        at, digest = self._place(text)
        if is_new := text not in self:
            self._digests.insert(at, digest)
        return is_new

    def _place(self, text: str) -> tuple[int, int]:
        digest = int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")
        return bisect_left(self._digests, digest), digest


class Answered:
    """Keys of the answers that earlier runs have written.

    Requests with a server error (5xx) are tried again and count as unanswered.
    """

    def __init__(self, answers: Iterable[BatchAnswer] = ()) -> None:
        self.answered = KeySet()
        self.refused = KeySet()
        """Keys of `answered` whose answer is an error."""
        for answer in answers:
            if answer.status < 500:
                self.answered.add(answer.key)
                if answer.status != 200:
                    self.refused.add(answer.key)


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
