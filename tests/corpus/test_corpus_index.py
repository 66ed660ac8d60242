"""The index of a corpus: what is found in it, and what a file that is none gets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgespec.corpus import building, layout
from edgespec.corpus.building import MOST_EQUAL, write_index
from edgespec.corpus.index import CorpusIndex
from edgespec.corpus.layout import DEPTH
from edgespec.errors import ModelError, UsageError

FINGERPRINT = "0123456789abcdef"
N_VOCAB = 5
TEXT = [0, 1, 2, 3, 4, 0, 1, 2, 4, 4]

texts_of_few_tokens = st.lists(st.lists(st.integers(0, N_VOCAB - 1), max_size=60), max_size=8)


@pytest.fixture
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A corpus of a hundred tokens is sorted as one of a hundred million would be."""
    monkeypatch.setattr(building, "BUCKET", 20)
    monkeypatch.setattr(building, "BLOCK", 13)
    monkeypatch.setattr(building, "MOST_DIRECTORY", 4)


def written(folder: Path, texts: Sequence[Sequence[int]], n_vocab: int = N_VOCAB) -> Path:
    path = folder / "corpus.idx"
    write_index(path, ([text] for text in texts), n_vocab, FINGERPRINT)
    return path


def opened(path: Path, fingerprint: str = FINGERPRINT, n_vocab: int = N_VOCAB) -> CorpusIndex:
    return CorpusIndex(path, fingerprint, n_vocab)


def places(texts: Sequence[Sequence[int]], words: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Token after each place and number of tokens in common, found by plain search."""
    for text in texts:
        for at in range(len(text) - 1):
            alike = 0
            while alike < min(DEPTH, len(words), at + 1) and text[at - alike] == words[-1 - alike]:
                alike += 1
            yield text[at + 1], alike


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=12
)
@given(texts_of_few_tokens, st.lists(st.integers(0, N_VOCAB - 1), min_size=1, max_size=20))
def test_what_is_found_are_the_places_with_most_in_common(
    tmp_path: Path, small_buckets: None, texts: list[list[int]], words: list[int]
) -> None:
    known = sorted(places(texts, words), key=lambda place: -place[1])
    if not known:
        return
    most = known[0][1]
    nearest = sorted(token for token, alike in known if alike == most)
    with opened(written(tmp_path, texts)) as index:
        found = index.continuations(words)
    assert {tuple(place) for place in found} <= set(known)
    if most == 0:
        assert not found
    elif len(nearest) < 20:
        assert sorted(token for token, alike in found if alike == most) == nearest


def test_tokens_of_large_vocabularies_are_found(tmp_path: Path) -> None:
    path = written(tmp_path, [[70_000, 1, 99_999, 5]], n_vocab=100_000)
    with opened(path, n_vocab=100_000) as index:
        assert index.continuations([70_000, 1]) == [(99_999, 2)]


def test_one_text_does_not_go_on_in_the_next(tmp_path: Path) -> None:
    with opened(written(tmp_path, [[0, 1], [2, 3]])) as index:
        assert index.continuations([0, 1]) == []


def test_a_text_repeated_a_thousand_times_takes_little(tmp_path: Path) -> None:
    text = [n % N_VOCAB for n in range(40)]
    with opened(written(tmp_path, [text] * 1000)) as index:
        assert len(index) <= len(text) * MOST_EQUAL


def test_a_corpus_of_one_token_is_no_trouble(tmp_path: Path, small_buckets: None) -> None:
    with opened(written(tmp_path, [[3] * 5000])) as index:
        assert set(index.continuations([3, 3, 3])) == {(3, 3)}


def test_words_that_no_token_is_are_not_found(tmp_path: Path) -> None:
    with opened(written(tmp_path, [TEXT])) as index:
        assert index.continuations([0, 70_000]) == []


def test_nothing_to_index_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no two tokens in a row"):
        written(tmp_path, [[1], [2]])
    assert not list(tmp_path.iterdir())


def test_an_index_that_is_given_up_leaves_nothing(tmp_path: Path) -> None:
    def interrupted() -> Iterator[list[list[int]]]:
        yield [TEXT]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_index(tmp_path / "corpus.idx", interrupted(), N_VOCAB, FINGERPRINT)
    assert not list(tmp_path.iterdir())


def test_an_index_of_another_vocabulary_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="another vocabulary"):
        opened(written(tmp_path, [TEXT]), fingerprint="f" * 16)


def test_what_is_no_index_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF" + bytes(200))
    with pytest.raises(ModelError, match="no index of a corpus"):
        opened(path)


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="directory"):
        opened(tmp_path)


def test_another_version_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, [TEXT])
    content = bytearray(path.read_bytes())
    content[8] = 9
    path.write_bytes(content)
    with pytest.raises(ModelError, match="another version"):
        opened(path)


def test_a_file_cut_short_anywhere_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, [TEXT])
    content = path.read_bytes()
    for n_bytes in {*range(layout.HEADER_BYTES + 2), *range(0, len(content), 13)}:
        path.write_bytes(content[:n_bytes])
        with pytest.raises(ModelError):
            opened(path)


def test_a_header_or_directory_with_a_wrong_bit_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, [TEXT])
    content = path.read_bytes()
    directory_bytes = (len(TEXT) - 1) * DEPTH * 2
    checked = [*range(layout.HEADER_BYTES), *range(len(content) - directory_bytes, len(content))]
    for at in checked:
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        with pytest.raises(ModelError):
            opened(path)


def test_wrong_bits_elsewhere_give_an_error_or_tokens_of_the_vocabulary(tmp_path: Path) -> None:
    path = written(tmp_path, [TEXT])
    content = path.read_bytes()
    directory_bytes = (len(TEXT) - 1) * DEPTH * 2
    for at in range(layout.HEADER_BYTES, len(content) - directory_bytes):
        path.write_bytes(content[:at] + bytes([content[at] ^ 0x80]) + content[at + 1 :])
        with opened(path) as index, suppress(ModelError):
            assert all(token < N_VOCAB for token, _ in index.continuations(TEXT[:3]))


def test_a_file_cut_short_while_it_is_open_is_an_error(tmp_path: Path) -> None:
    path = written(tmp_path, [TEXT])
    with opened(path) as index:
        path.write_bytes(path.read_bytes()[: layout.HEADER_BYTES])
        with pytest.raises(ModelError, match="cut short"):
            index.continuations(TEXT[:3])
