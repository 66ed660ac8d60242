"""A GPU's memory is divided: all of a decoder, some of its pieces evenly spaced, or none."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("onnxruntime", reason="the ONNX runtime is not installed")

from edgespec_runtimes.onnx.memory.placement import GpuNeeds, PieceSize, Placement, place

LAYER, HEAD = 0, 1


def decoder(n_layers: int, fixed: int = 5, head: int = 30) -> GpuNeeds:
    """Layers of 10 bytes, which share a graph, and a head."""
    pieces = (*(PieceSize(LAYER, 10) for _ in range(n_layers)), PieceSize(HEAD, head))
    return GpuNeeds(10 * n_layers + head + fixed, fixed, pieces)


def test_what_fits_is_one_session_that_has_everything() -> None:
    placement = place(135, decoder(10))
    assert placement == Placement(uses_gpu=True, is_whole=True)


def test_with_the_least_room_each_graph_has_room_for_one_piece() -> None:
    needs = decoder(10)
    placement = place(needs.least_bytes, needs)
    assert needs.least_bytes == 5 + 10 + 30
    assert placement.uses_gpu
    assert placement.kept == {10}, "the head is alone with its graph: it stays where its room is"
    assert placement.room_bytes == 10


def test_with_less_than_the_least_room_the_cpu_computes() -> None:
    needs = decoder(10)
    assert place(needs.least_bytes - 1, needs) == Placement()


def test_layers_that_stay_are_evenly_spaced() -> None:
    needs = decoder(20)
    placement = place(needs.least_bytes + 50, needs)
    layers = sorted(placement.kept - {20})
    assert len(layers) == 5
    assert {b - a for a, b in itertools.pairwise(layers)} == {4}


def test_all_pieces_stay_where_only_the_buffers_of_one_session_do_not_fit() -> None:
    uneven = (PieceSize(LAYER, 11), *decoder(3).pieces)
    placement = place(5 + 11 + 30 + 30, GpuNeeds(1000, 5, uneven))
    assert placement.kept == {0, 1, 2, 3, 4}
    assert placement.room_bytes == 0


def test_the_last_piece_of_a_graph_takes_the_room_that_no_other_needs() -> None:
    alike = [*(PieceSize(0, 10) for _ in range(2)), *(PieceSize(1, 10) for _ in range(3))]
    placement = place(10 + 10 + 20, GpuNeeds(1000, 0, tuple(alike)))
    assert placement.kept == {0, 1, 4}
    assert placement.room_bytes == 10


def test_a_draft_goes_there_whole_or_not_at_all() -> None:
    draft = GpuNeeds(100, 5, ())
    assert place(100, draft).is_whole
    assert place(99, draft) == Placement()
    assert draft.least_bytes == 100


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 50)), min_size=1, max_size=30),
    st.integers(0, 40),
    st.integers(0, 1500),
)
def test_a_placement_never_takes_more_than_it_is_given_and_uses_the_least_that_works(
    sizes: list[tuple[int, int]], fixed: int, gpu_bytes: int
) -> None:
    pieces = tuple(PieceSize(graph, nbytes) for graph, nbytes in sizes)
    needs = GpuNeeds(fixed + sum(piece.nbytes for piece in pieces), fixed, pieces)
    placement = place(gpu_bytes, needs)
    assert placement.uses_gpu == (gpu_bytes >= needs.least_bytes)
    if not placement.uses_gpu or placement.is_whole:
        return
    assert fixed + placement.kept_bytes + placement.room_bytes <= gpu_bytes
    copied = [i for i in range(len(pieces)) if i not in placement.kept]
    assert all(pieces[i].nbytes <= placement.room_bytes for i in copied)
