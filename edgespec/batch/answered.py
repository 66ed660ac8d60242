"""Compact sets of the requests that were seen or answered."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable
from hashlib import blake2b

from edgespec.batch.lines import BatchAnswer

_N_BUCKETS = 256


class KeySet:
    """A set of strings that stores 8-byte digests; among a million strings, a collision has a
    probability of 3 in 100 million."""

    def __init__(self) -> None:
        self._buckets = [array("Q") for _ in range(_N_BUCKETS)]
        """Sorted digests by their lowest byte."""

    def __len__(self) -> int:
        return sum(map(len, self._buckets))

    def __contains__(self, text: str) -> bool:
        digest, bucket = self._place(text)
        at = bisect_left(bucket, digest)
        return at < len(bucket) and bucket[at] == digest

    def add(self, text: str) -> bool:
        """Add `text`; True if it is new."""
        digest, bucket = self._place(text)
        at = bisect_left(bucket, digest)
        if at < len(bucket) and bucket[at] == digest:
            return False
        bucket.insert(at, digest)
        return True

    def _place(self, text: str) -> tuple[int, array[int]]:
        digest = int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")
        return digest, self._buckets[digest % _N_BUCKETS]


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
