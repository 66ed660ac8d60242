"""Models fetched from a hub on this machine, and every way in which that can fail."""

import errno
import hashlib
import os
import shutil
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from huggingface_hub import close_session, scan_cache_dir, try_to_load_from_cache
from huggingface_hub.utils import WeakFileLock

from edgespec.errors import FetchError, ModelError
from edgespec.hub import fetch as fetching
from edgespec.hub.fetch import Hub
from edgespec.settings import hub_reference
from hub_server import REVISION, FakeHub, serving
from sentences import refuses

MODEL = bytes(range(256)) * 9000
REPO = "user/repo-GGUF"
FILES = {"m-Q4_K_M.gguf": MODEL, "m-Q8_0.gguf": b"other", "README.md": b"#"}
PARTS = {f"m-Q4_0-{n:05d}-of-00002.gguf": bytes([n]) * 1000 for n in (1, 2)}


@pytest.fixture
def hub():
    with serving(FakeHub({REPO: dict(FILES)})) as running:
        yield running


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    monkeypatch.setattr(fetching, "PAUSE_S", 0)


def fetch(hub: FakeHub, cache: Path, name: str = REPO, **options):
    token = options.pop("token", None)
    local = Hub(hub.endpoint, cache, token=token, offline=options.pop("offline", False))
    return local.fetch(hub_reference.parse(name), **options)


def test_a_model_is_fetched_into_the_cache_of_huggingface_hub(hub, tmp_path):
    path = fetch(hub, tmp_path).path
    assert path == tmp_path / "models--user--repo-GGUF/snapshots" / REVISION / "m-Q4_K_M.gguf"
    assert path.read_bytes() == MODEL


def test_what_is_there_is_not_fetched_again(hub, tmp_path):
    fetch(hub, tmp_path)
    fetch(hub, tmp_path)
    assert hub.ranges == ["bytes=0-"]


def test_all_parts_of_a_split_model_lie_beside_each_other(hub, tmp_path):
    hub.repos[REPO] |= PARTS
    path = fetch(hub, tmp_path, f"{REPO}:Q4_0").path
    assert path.name == "m-Q4_0-00001-of-00002.gguf"
    assert {part.name for part in path.parent.iterdir()} == set(PARTS)


def test_an_onnx_model_comes_with_its_weights_and_tokenizer(hub, tmp_path):
    hub.repos["user/repo-ONNX"] = {
        name: name.encode() for name in ("tokenizer.json", "onnx/m_q4.onnx", "onnx/m_q4.onnx_data")
    } | {"onnx/m_fp16.onnx": b"other"}
    path = fetch(hub, tmp_path, "user/repo-ONNX:q4").path
    snapshot = tmp_path / "models--user--repo-ONNX/snapshots" / REVISION
    assert path == snapshot / "onnx/m_q4.onnx"
    assert {file.name for file in path.parent.iterdir()} == {"m_q4.onnx", "m_q4.onnx_data"}
    assert (snapshot / "tokenizer.json").read_bytes() == b"tokenizer.json"
    offline = fetch(hub, tmp_path, "user/repo-ONNX:q4", offline=True)
    assert offline.path == path


def test_progress_goes_from_nothing_to_everything(hub, tmp_path):
    shares = []
    fetch(hub, tmp_path, progress=lambda what, share: shares.append((what, share)))
    assert shares[-1] == (f"fetching {REPO} (2.2 MiB)", 1.0)
    assert sorted(shares) == shares


def test_a_connection_that_breaks_is_taken_up_where_it_broke(hub, tmp_path):
    hub.breaks_after = [1_000_000, 500_000]
    assert fetch(hub, tmp_path).path.read_bytes() == MODEL
    assert hub.ranges == ["bytes=0-", "bytes=1000000-", "bytes=1500000-"]


def test_a_connection_that_stays_broken_leaves_what_was_fetched_for_the_next_run(hub, tmp_path):
    hub.breaks_after = [1_000_000] + [0] * (fetching.MAX_FAILURES + 1)
    with refuses(FetchError):
        fetch(hub, tmp_path)
    hub.ranges.clear()
    assert fetch(hub, tmp_path).path.read_bytes() == MODEL
    assert hub.ranges == ["bytes=1000000-"]


def test_ctrl_c_leaves_what_was_fetched_for_the_next_run(hub, tmp_path):
    def interrupt(what: str, share: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(hub, tmp_path, progress=interrupt)
    partial = next(tmp_path.rglob("*.incomplete")).stat().st_size
    hub.ranges.clear()
    assert fetch(hub, tmp_path).path.read_bytes() == MODEL
    assert hub.ranges == [f"bytes={partial}-"]


def test_a_server_that_knows_no_ranges_begins_anew(hub, tmp_path):
    hub.breaks_after, hub.ignores_ranges = [1_000_000, 0], True
    assert fetch(hub, tmp_path).path.read_bytes() == MODEL
    assert hub.ranges == ["bytes=0-", "bytes=1000000-", "bytes=0-"]


def test_a_damaged_entry_of_the_cache_is_no_model(hub, tmp_path):
    fetch(hub, tmp_path)
    next(tmp_path.glob("models--*/refs/main")).write_bytes(b"\xff")
    (tmp_path / "models--a--b" / "refs" / "main").mkdir(parents=True)
    assert not [*Hub(hub.endpoint, tmp_path, token=None).models()]


def test_a_file_that_comes_damaged_is_dropped(hub, tmp_path):
    hub.damages = True
    with refuses(FetchError):
        fetch(hub, tmp_path)
    hub.damages = False
    assert fetch(hub, tmp_path).path.read_bytes() == MODEL


def test_a_repository_that_is_not_there_says_what_to_check(hub, tmp_path):
    with refuses(FetchError):
        fetch(hub, tmp_path, "user/nothing")


def test_a_gated_repository_says_where_its_terms_are(hub, tmp_path):
    hub.gated.add(REPO)
    with refuses(FetchError):
        fetch(hub, tmp_path)


def test_a_token_opens_a_private_repository(hub, tmp_path):
    hub.private[REPO] = "hf_secret"
    with refuses(FetchError):
        fetch(hub, tmp_path)
    assert fetch(hub, tmp_path, token="hf_secret").path.read_bytes() == MODEL


def test_a_token_stays_with_the_hub_that_it_is_for(hub, tmp_path):
    with serving(FakeHub({REPO: dict(FILES)})) as other:
        hub.elsewhere = other.endpoint
        assert fetch(hub, tmp_path, token="hf_secret").path.read_bytes() == MODEL
    assert (hub.tokens, other.tokens) == (["Bearer hf_secret"], [None])


def test_a_quantisation_that_is_not_there_names_those_that_are(hub, tmp_path):
    with refuses(ModelError):
        fetch(hub, tmp_path, f"{REPO}:Q2_K")


@pytest.mark.parametrize("status", [401, 403, 404, 429, 500, 503])
def test_a_model_in_the_cache_is_used_while_the_hub_refuses(hub, tmp_path, status):
    path = fetch(hub, tmp_path).path
    hub.status = status
    found = fetch(hub, tmp_path)
    assert found.path == path
    assert found.notes[0].endswith("; the model in the cache is used")


def test_the_newest_that_does_not_come_leaves_the_one_in_the_cache_in_use(hub, tmp_path):
    path = fetch(hub, tmp_path).path
    hub.repos[REPO]["m-Q4_K_M.gguf"], hub.commit = b"newer", "c" * 40
    hub.refusals = [404]
    found = fetch(hub, tmp_path)
    assert found.path == path
    assert "answered 404 for user/repo-GGUF; the model in the cache is used" in found.notes[0]
    assert fetch(hub, tmp_path).path.read_bytes() == b"newer"


def test_another_model_in_the_cache_is_not_used_for_the_one_that_is_meant(hub, tmp_path):
    fetch(hub, tmp_path, f"{REPO}:Q8_0")
    hub.status = 503
    with refuses(FetchError):
        fetch(hub, tmp_path, f"{REPO}:Q4_K_M")


@pytest.mark.parametrize("page", [b"<html>Welcome to the hotel</html>", b"[]", b'"x"', b"{}", b""])
def test_what_is_no_hub_says_so(hub, tmp_path, page):
    hub.page = page
    with refuses(FetchError):
        fetch(hub, tmp_path)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("all_proxy", "socks5://127.0.0.1:9"),
        ("SSL_CERT_FILE", "/nowhere.pem"),
    ],
)
def test_an_environment_without_a_way_to_the_hub_is_named(
    hub, tmp_path, monkeypatch, variable, value
):
    monkeypatch.setenv(variable, value)
    close_session()
    local = Hub(hub.endpoint, tmp_path, token=None, offline=False)
    with refuses(FetchError):
        local.fetch(hub_reference.parse(REPO))
    close_session()


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_an_answer_that_passes_is_tried_again(hub, tmp_path, status):
    hub.refusals = [status] * fetching.MAX_FAILURES
    assert fetch(hub, tmp_path).path.read_bytes() == MODEL


@pytest.mark.parametrize("status", [400, 403, 404, 410])
def test_an_answer_that_will_be_the_same_is_not_asked_for_twice(hub, tmp_path, status):
    hub.refusals = [status, status]
    with refuses(FetchError):
        fetch(hub, tmp_path)
    assert len(hub.refusals) == 1


OUTSIDE = ["../../../x", "/tmp/x", "..", "a/b", "", "a" * 39, "a" * 63, "g" * 64, "a" * 65, None]


@pytest.mark.parametrize("outside", OUTSIDE)
@pytest.mark.parametrize("name", ["sha256", "blobId"])
def test_a_checksum_that_is_none_is_refused_and_nothing_is_written(hub, tmp_path, name, outside):
    hub.told = {name: outside} | ({"lfs": None} if name == "blobId" else {})
    with pytest.raises(FetchError):
        fetch(hub, tmp_path / "deep/in/here")
    assert hub.ranges == []
    assert not any(path.is_file() for path in tmp_path.rglob("*"))


def test_a_small_file_is_held_against_git_s_own_checksum(hub, tmp_path):
    digits = hashlib.sha1(b"blob %d\0" % len(MODEL) + MODEL).hexdigest()
    hub.told = {"lfs": None, "blobId": digits}
    assert fetch(hub, tmp_path).path.resolve().name == digits
    hub.told = {"lfs": None, "blobId": digits[::-1]}
    with refuses(FetchError):
        fetch(hub, tmp_path / "another")


@pytest.mark.parametrize("commit", ["../../../x", "/tmp/x", "main", None, "a" * 41])
def test_a_commit_that_is_none_is_refused(hub, tmp_path, commit):
    hub.commit = commit
    with refuses(FetchError):
        fetch(hub, tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "../../x.gguf",
        "/tmp/x.gguf",
        "a/../../x.gguf",
        "..\\x.gguf",
        "C:x.gguf",
        "\x1b[2J.gguf",
    ],
)
def test_a_name_that_leads_outside_is_no_file_of_the_repository(hub, tmp_path, name):
    hub.repos[REPO] = {name: MODEL}
    with refuses(ModelError):
        fetch(hub, tmp_path / "deep/in/here")
    assert not any(path.is_file() for path in tmp_path.rglob("*"))


def test_other_tools_find_what_was_fetched(hub, tmp_path):
    path = fetch(hub, tmp_path).path
    assert try_to_load_from_cache(REPO, "m-Q4_K_M.gguf", cache_dir=tmp_path) == str(path)
    (repo,) = scan_cache_dir(tmp_path).repos
    assert (repo.repo_id, repo.size_on_disk) == (REPO, len(MODEL))


def test_of_two_that_fetch_one_model_the_second_waits_and_fetches_nothing(hub, tmp_path):
    digits = hashlib.sha256(MODEL).hexdigest()
    blob = tmp_path / "models--user--repo-GGUF/blobs" / digits
    lock = tmp_path / ".locks/models--user--repo-GGUF" / f"{digits}.lock"
    lock.parent.mkdir(parents=True)
    with ThreadPoolExecutor(1) as threads:
        with WeakFileLock(lock):
            second = threads.submit(fetch, hub, tmp_path)
            blob.parent.mkdir(parents=True, exist_ok=True)
            blob.write_bytes(MODEL)
        assert second.result().path.read_bytes() == MODEL
    assert hub.ranges == []


def test_a_disk_that_is_too_small_is_said_before_anything_is_fetched(hub, tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")(0, 0, 1 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with refuses(FetchError):
        fetch(hub, tmp_path)
    assert hub.ranges == []


def test_what_was_fetched_needs_no_room_again(hub, tmp_path, monkeypatch):
    hub.breaks_after = [2_000_000] + [0] * (fetching.MAX_FAILURES + 1)
    with pytest.raises(FetchError):
        fetch(hub, tmp_path)
    usage = namedtuple("usage", "total used free")(0, 0, 1 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    assert fetch(hub, tmp_path).path.read_bytes() == MODEL


def test_a_disk_that_fills_up_meanwhile_is_said(hub, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(fetching, "_complete", full)
    with refuses(FetchError):
        fetch(hub, tmp_path)


def test_without_a_connection_the_cache_serves(hub, tmp_path):
    path = fetch(hub, tmp_path).path
    away = FakeHub(endpoint="http://127.0.0.1:1")
    found = fetch(away, tmp_path)
    assert found.path == path
    assert "failed" in found.notes[0]


def test_offline_nothing_is_asked(hub, tmp_path):
    path = fetch(hub, tmp_path).path
    assert fetch(FakeHub(), tmp_path, offline=True).path == path
    with refuses(FetchError):
        fetch(FakeHub(), tmp_path, "user/other", offline=True)


def test_part_of_a_split_model_in_the_cache_is_no_model(hub, tmp_path):
    hub.repos[REPO] |= PARTS
    path = fetch(hub, tmp_path, f"{REPO}:Q4_0").path
    (path.parent / "m-Q4_0-00002-of-00002.gguf").unlink()
    with refuses(ModelError):
        fetch(FakeHub(), tmp_path, f"{REPO}:Q4_0", offline=True)


def test_a_model_of_an_earlier_commit_stays_in_the_cache(hub, tmp_path):
    fetch(hub, tmp_path)
    hub.commit = "c" * 40
    fetch(hub, tmp_path, f"{REPO}:Q8_0")
    assert fetch(hub, tmp_path, offline=True).path.read_bytes() == MODEL


def test_a_cache_without_links_holds_the_file_itself(hub, tmp_path, monkeypatch):
    """On exFAT gigabytes were fetched, and then could not be linked."""

    def fails(*_: object) -> None:
        raise PermissionError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "symlink", fails)
    monkeypatch.setattr(os, "link", fails)
    for options in ({}, {}, {"offline": True}):
        assert fetch(hub, tmp_path, **options).path.read_bytes() == MODEL
    assert hub.ranges == ["bytes=0-"]
