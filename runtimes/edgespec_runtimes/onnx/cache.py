"""The KV cache, with committed tokens and provisional tree nodes.

Slots of the committed prefix come first, then those of the provisional nodes in the order of their
evaluation. A pass appends entries, a commit moves a few. Knows trees and slots, but not the graph
that reads the entries.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import helper

from edgespec.concurrency.owning import Closeable
from edgespec.errors import EdgespecError, StateError, UsageError, setting
from edgespec.paging.reader import AlignedMemory
from edgespec.pool import Pool
from edgespec_runtimes.onnx.files.roles import Roles
from edgespec_runtimes.onnx.ort.sessions import Bound

KEY, VALUE = 0, 1
BLOCK_BYTES = 1 << 20
MAX_BLOCK_TOKENS = 64
"""Most tokens of a block: a shorter rest of a prefix is computed again."""


class KeyValueCache(Closeable):
    """A KV cache for `capacity` tokens, whose memory becomes resident where it is written.

    Its memory is [layers, 2, tokens, heads, size]. A cache that is shared with attention, which
    appends to it by itself, is [layers, 2, heads, tokens, size]. A `sparse` cache has no huge
    pages, a single token in each of which would make all of it resident.
    """

    def __init__(
        self, roles: Roles, capacity: int, is_shared: bool = False, sparse: bool = False
    ) -> None:
        kind = helper.tensor_dtype_to_np_dtype(roles.kv_kind)
        sizes = (roles.kv_heads, capacity) if is_shared else (capacity, roles.kv_heads)
        shape = (roles.n_layers, 2, *sizes, roles.head_size)
        nbytes = math.prod(shape) * kind.itemsize
        self._memory = AlignedMemory(nbytes, sparse)
        memory = np.frombuffer(self._memory.view(0, nbytes), kind).reshape(shape)
        self.entries: np.ndarray[Any, Any] = memory.swapaxes(2, 3) if is_shared else memory
        """The memory as [layers, 2, tokens, heads, size]."""
        layer_bytes, part_bytes, self._token_bytes = self.entries.strides[:3]
        start = memory.ctypes.data
        self._starts = [
            [start + layer * layer_bytes + part * part_bytes for part in (KEY, VALUE)]
            for layer in range(roles.n_layers)
        ]
        self._kind, self._token_shape = memory.dtype.type, self.entries.shape[3:]
        self.is_shared = is_shared
        whole = (1, *sizes, roles.head_size)
        self.buffers = [[Bound(self._kind, whole, at) for at in starts] for starts in self._starts]
        """All keys and all values of each layer, [1, heads, tokens, size] if shared."""
        self.n_committed = 0
        self._chains: dict[int, tuple[int, ...]] = {}
        """Slots from the root to each provisional node, by node key."""

    @property
    def n_used(self) -> int:
        """Number of slots in use, by committed tokens and provisional nodes."""
        return self.n_committed + len(self._chains)

    def located(
        self, layer: int, kind: int, begin: int, n_tokens: int, outer: tuple[int, ...] = ()
    ) -> Bound:
        """The memory of the keys or values of some slots, [*outer, tokens, heads, size]."""
        address = self._starts[layer][kind] + begin * self._token_bytes
        return Bound(self._kind, (*outer, n_tokens, *self._token_shape), address)

    def extend(self, n_tokens: int) -> None:
        """Commit the next `n_tokens` slots, which were filled by a pass."""
        self.n_committed += n_tokens

    def place(self, pool: Pool, nodes: Sequence[int]) -> list[tuple[int, ...]]:
        """Assign the next slots to `nodes`, parents first; returns the slots from the root to each.

        Raises UsageError for a node whose parent was not evaluated, EdgespecError when full.
        """
        capacity = self.entries.shape[2]
        if self.n_used + len(nodes) > capacity:
            raise EdgespecError(
                f"the KV cache of {capacity:,} tokens is full: raise {setting.ctx_size} or shorten "
                "the prompt"
            )
        chains = []
        for node in nodes:
            above: tuple[int, ...] | None = ()
            if pool.parent[node] >= 0:
                above = self._chains.get(int(pool.key[pool.parent[node]]))
            key = int(pool.key[node])
            if above is None or key in self._chains:
                raise UsageError(
                    "a node was evaluated already, or its parent was not: evaluate each node once, "
                    "parents first"
                )
            self._chains[key] = (*above, self.n_used)
            chains.append(self._chains[key])
        return chains

    def commit(self, pool: Pool, path: Sequence[int], keep: Sequence[int]) -> None:
        """Append `path` to the prefix; the nodes below it in `keep` stay provisional."""
        keys = [int(pool.key[node]) for node in path]
        end_chain = self._chains.get(keys[-1]) if keys else None
        if end_chain is None or [self._chains.get(key, ((),))[-1] for key in keys] != list(
            end_chain
        ):
            raise UsageError("the path to commit was not evaluated: evaluate its nodes first")
        depth = len(end_chain)
        kept_keys = {int(pool.key[node]) for node in keep}
        below = {
            key: chain
            for key, chain in self._chains.items()
            if key in kept_keys and len(chain) > depth and chain[:depth] == end_chain
        }
        kept_slots = {chain[-1] for chain in below.values()}
        # a node stays only if all nodes between it and the path stay
        below = {k: c for k, c in below.items() if kept_slots.issuperset(c[depth:])}
        sources = [*end_chain, *(chain[-1] for chain in below.values())]
        begin = self.n_committed
        self._move(sources, begin)
        moved = {source: begin + i for i, source in enumerate(sources)}
        self.n_committed += depth
        self._chains = {
            key: tuple(moved[slot] for slot in chain[depth:]) for key, chain in below.items()
        }

    def truncate(self, n_tokens: int) -> None:
        """Shorten the prefix and drop all provisional nodes."""
        if n_tokens > self.n_committed:
            raise UsageError(
                f"the prefix of {self.n_committed} tokens cannot be cut to {n_tokens}: name fewer"
            )
        self._chains.clear()
        self.n_committed = n_tokens

    def begin_with(self, other: KeyValueCache, n_tokens: int) -> None:
        """Replace the content by a copy of the first `n_tokens` committed tokens of `other`."""
        self.truncate(0)
        self.entries[:, :, :n_tokens] = other.entries[:, :, :n_tokens]
        self.extend(n_tokens)

    @property
    def block_tokens(self) -> int:
        """Number of tokens of a block, a power of two, with about `BLOCK_BYTES`."""
        n_layers, parts = self.entries.shape[:2]
        token_bytes = int(n_layers * parts * self._token_bytes)
        most = min(MAX_BLOCK_TOKENS, BLOCK_BYTES // max(1, token_bytes))
        return 1 << max(0, most.bit_length() - 1)

    def block(self, begin: int) -> memoryview:
        """A copy of the keys and values of the committed tokens of a block."""
        end = begin + self.block_tokens
        return memoryview(self.entries[:, :, begin:end].tobytes())

    def append_block(self, content: memoryview) -> None:
        """Append a block to the prefix. Raises StateError for one of another size."""
        begin, n_tokens = self.n_committed, self.block_tokens
        into = self.entries[:, :, begin : begin + n_tokens]
        if content.nbytes != into.nbytes or into.shape[2] != n_tokens:
            raise StateError(f"a block has {content.nbytes:,} bytes, not {into.nbytes:,}")
        into[:] = np.frombuffer(content, into.dtype).reshape(into.shape)
        self.extend(n_tokens)

    def close(self) -> None:
        self._chains.clear()
        self.buffers = []
        self.entries = np.empty((0, 2, 0, 0, 0), self.entries.dtype)
        self._memory.close()

    def _move(self, sources: Sequence[int], begin: int) -> None:
        """Move slots to `begin` and after, except leading ones that are already there."""
        n = 0
        while n < len(sources) and sources[n] == begin + n:
            n += 1
        if rest := list(sources[n:]):
            self.entries[:, :, begin + n : begin + n + len(rest)] = self.entries[:, :, rest]
