"""The plan of a server keeps memory for its clients' requests."""

import pytest

import edgespec
from edgespec.memory import requests
from edgespec.models.embedded import embedded_pair
from edgespec.settings.config import LoadSettings

MIB = 1 << 20


def planned(most_body_bytes: int | None) -> int:
    """Bytes of the row for requests."""
    settings = LoadSettings(model=embedded_pair().target, most_body_bytes=most_body_bytes)
    rows = edgespec.plan(settings).rows
    return sum(row.nbytes for row in rows if row.what == "requests")


def test_only_a_server_keeps_it():
    assert planned(None) == 0
    assert 4 * MIB < planned(0) < 16 * MIB


def test_larger_bodies_take_more():
    assert planned(1 * MIB) > planned(0) + 30 * MIB


@pytest.mark.parametrize(("n_ctx", "expected"), [(1024, 80 << 10), (131_072, 2_112 << 10)])
def test_bodies_are_as_large_as_the_context_may_need(n_ctx, expected):
    assert requests.most_body_bytes(n_ctx) == expected


def test_each_text_at_once_may_have_a_large_answer_and_a_grammar():
    def kept(n_parallel: int) -> dict[str, int]:
        settings = LoadSettings(
            model=embedded_pair().target, n_parallel=n_parallel, grammars=True, logprobs=True
        )
        rows = edgespec.plan(settings).rows
        return {row.what: row.nbytes for row in rows if row.owner == "process"}

    one, three = kept(1), kept(3)
    for what, nbytes in (("log probabilities", requests.ANSWER_BYTES), ("grammars", 8 * MIB)):
        assert three[what] - one[what] == 2 * nbytes
