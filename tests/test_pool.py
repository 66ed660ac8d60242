from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.errors import UsageError
from edgespec.pool import Pool, line
from sentences import refuses


@st.composite
def pools(draw: st.DrawFn, max_texts: int = 3, max_nodes: int = 24) -> Pool:
    """A packed pool with the trees of several texts, whose nodes are mixed."""
    pool = Pool(4)
    for text in range(draw(st.integers(1, max_texts))):
        pool.plant(text, draw(st.integers(0, 9)))
    for _ in range(draw(st.integers(0, max_nodes))):
        parent, token = draw(st.integers(0, pool.n - 1)), draw(st.integers(0, 9))
        if pool.child(parent, token) is None:
            pool.add(parent, token, draw(st.floats(0.0, 1.0)))
    return pool


def spelled(pool: Pool, text: int) -> dict[int, tuple[tuple[int, ...], float]]:
    """Tokens from the root and confidence of each node of a text, by key."""
    return {
        int(pool.key[node]): (
            tuple(pool.token[pool.path(int(node))].tolist()),
            float(pool.confidence[node]),
        )
        for node in pool.alive(text)
    }


def test_a_root_has_no_parent_and_is_sure() -> None:
    pool = Pool()
    root = pool.plant(3, 7)
    assert (pool.token[root], pool.depth[root], pool.text[root]) == (7, 0, 3)
    assert pool.parent[root] < 0 and pool.cumulative[root] == 1.0 and pool.root == {3: root}


def test_cumulative_confidence_is_the_product_down_the_branch() -> None:
    pool = line(0, [0])
    end = pool.add(pool.add(0, 1, 0.5), 2, 0.25)
    assert pool.cumulative[end] == 0.125
    pool.revise(1, 1.0)
    assert pool.cumulative[end] == 0.25


@given(pools())
def test_parents_come_before_children_and_paths_are_contiguous(pool: Pool) -> None:
    for node in pool.alive().tolist():
        path = pool.path(node)
        assert len(path) == pool.depth[node] + 1 and path == sorted(path)
        assert path[0] == pool.root[int(pool.text[node])]
        assert all(pool.parent[below] == above for above, below in itertools.pairwise(path))


@given(pools(), st.data())
def test_only_what_hangs_below_a_new_root_stays_of_its_text(
    pool: Pool, data: st.DataObject
) -> None:
    node = data.draw(st.sampled_from(pool.alive().tolist()))
    text, before = int(pool.text[node]), [spelled(pool, n) for n in range(3)]
    n_above, kept_keys = int(pool.depth[node]), pool.key[pool.subtree(node)].tolist()
    root_key = int(pool.key[node])
    pool.follow(node)
    pool.pack()
    for other in range(3):
        after = spelled(pool, other)
        if other != text:
            assert after == before[other]
            continue
        assert [*after] == kept_keys
        for key, (tokens, confidence) in after.items():
            assert tokens == before[text][key][0][n_above:]
            assert confidence == (1.0 if key == root_key else before[text][key][1])
    assert pool.n == len(pool.alive()) and pool.parent[pool.root[text]] < 0
    for each in pool.alive().tolist():
        above = pool.parent[each]
        expected = pool.cumulative[above] * pool.confidence[each] if above >= 0 else 1.0
        assert pool.cumulative[each] == pytest.approx(expected)
        if above >= 0:
            assert pool.child(int(above), int(pool.token[each])) == each


def test_keys_are_never_given_twice() -> None:
    pool = line(0, [1, 2, 3])
    keys = set(pool.key[:3].tolist())
    pool.plant(0, 4)
    pool.pack()
    keys |= {int(pool.key[pool.root[0]]), int(pool.key[pool.add(pool.root[0], 5)])}
    assert len(keys) == 5


def test_a_pool_grows_while_readers_keep_what_they_know() -> None:
    pool = Pool(2)
    node = pool.plant(0, 1)
    tokens = pool.token
    for token in range(20):
        node = pool.add(node, token)
    assert pool.n == 21 and tokens[0] == 1
    assert pool.branch_tokens(node) == [*range(20)]


def test_a_dropped_node_is_no_child() -> None:
    """A text whose sources rest in a round drops its guesses: the next root was one of them."""
    pool = line(0, [1, 2])
    pool.bare(0)
    assert pool.child(0, 2) is None and not pool.children(0)
    assert pool.add(0, 2) == 2


@pytest.mark.parametrize(
    "call",
    [
        lambda pool: pool.add(9, 1),
        lambda pool: pool.add(0, 1, 1.5),
        lambda pool: pool.add(0, 2),
        lambda pool: pool.revise(0, 0.5),
    ],
)
def test_what_is_no_tree_is_refused(call) -> None:
    with refuses(UsageError):
        call(line(0, [1, 2]))
