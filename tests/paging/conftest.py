from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from edgespec.paging.expert_cache import ExpertCache
from edgespec.paging.expert_layers import ExpertLayer
from expert_files import Gate, make_file, room_of


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., tuple[ExpertCache, Gate, bytes]]]:
    made: list[tuple[ExpertCache, Gate]] = []

    def make(layers: Sequence[ExpertLayer], n_fitting: int) -> tuple[ExpertCache, Gate, bytes]:
        path = make_file(tmp_path, layers)
        gate = Gate(path)
        cache = ExpertCache(layers, gate, n_fitting * room_of(layers))
        made.append((cache, gate))
        return cache, gate, path.read_bytes()

    yield make
    for cache, gate in made:
        gate.open.set()
        cache.close()
