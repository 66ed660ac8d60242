"""Times llama.cpp's mmap decoding, edgespec and a plain read loop under the same limits.

    sudo python tests/measure_speed.py TARGET DRAFT [--memory 50%] [--read-limit 300M]

Every run is a process in memory and blkio cgroups (version 1) of its own; modes take turns, so that
drift hits all alike. Prints a row a run and the medians. Linux, root.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from edgespec.config import parse_size
from edgespec.resources import embedded_pair

CGROUPS = Path("/sys/fs/cgroup")
N_CTX = 512


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", type=Path)
    parser.add_argument("--memory", default="50%", help="of target plus draft, or a size")
    parser.add_argument("--read-limit", help="bytes a second, such as 300M; decimal")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--mmap-tokens", type=int, default=12)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--modes", default="raw,mmap,paged,no-overlap,drafted")
    parser.add_argument("--extra", default="", help="more flags for edgespec generate")
    parser.add_argument("--run-mmap", help=argparse.SUPPRESS)
    parser.add_argument("--run-raw", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    prompts = embedded_pair().target.parent / "prompts.jsonl"
    texts = [json.loads(line)["prompt"] for line in prompts.read_text().splitlines()]
    if args.run_mmap is not None:
        print(json.dumps(mmap_decode(args.target, args.run_mmap, args.mmap_tokens)))
        return

    if args.run_raw:
        print(json.dumps({"read_mb_per_s": raw_read(args.target)}))
        return

    models = args.target.stat().st_size + args.draft.stat().st_size
    budget = parse_size(args.memory, models)
    bytes_per_s = int(args.read_limit.upper().rstrip("M")) * 10**6 if args.read_limit else None
    rows: dict[str, list[dict[str, float]]] = {mode: [] for mode in args.modes.split(",")}
    for repetition in range(args.repeat):
        text = texts[repetition % len(texts)]
        for mode, done in rows.items():
            with limits(int(budget * 1.02), bytes_per_s, args.target) as enter:
                row = run(mode, args, text, budget, enter)
            done.append(row)
            print(mode, json.dumps(row), flush=True)
    print(f"\nmemory {budget / 2**20:.0f} MiB of {models / 2**20:.0f}, reads {args.read_limit}")
    for mode, done in rows.items():
        medians = {name: round(statistics.median(row[name] for row in done), 3) for name in done[0]}
        print(f"{mode:12} {json.dumps(medians)}")


def run(
    mode: str, args: argparse.Namespace, text: str, budget: int, enter: Sequence[Path]
) -> dict[str, float]:
    drop_cache(args.target)
    if mode in ("mmap", "raw"):
        command = [sys.executable, __file__, str(args.target), str(args.draft)]
        command += ["--run-mmap", text, "--mmap-tokens", str(args.mmap_tokens)]
        command = [*command[:4], "--run-raw"] if mode == "raw" else command
    else:
        command = [
            sys.executable, "-m", "edgespec", "generate", "-m", str(args.target), "-c", str(N_CTX),
            "--memory-budget", str(budget), "-n", str(args.tokens), "-p", text, "--json", "--quiet",
            "-t", "2",
        ]  # fmt: skip
        command += [] if mode == "paged" else ["-md", str(args.draft)]
        command += ["--no-overlap"] if mode == "no-overlap" else []
        command += args.extra.split()

    def join() -> None:
        for group in enter:
            (group / "cgroup.procs").write_text(str(os.getpid()))

    done = subprocess.run(command, preexec_fn=join, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{mode} ended with {done.returncode}: {done.stderr}")
    answer = json.loads(done.stdout)
    if mode in ("mmap", "raw"):
        return answer
    speculation, paging = answer["speculation"], answer["paging"]
    return {
        "tokens_per_s": answer["timings"]["tokens_per_s"],
        "tokens_per_pass": speculation["tokens_per_pass"],
        "read_mb_per_s": paging["bytes_read"] / 1e6 / answer["timings"]["decode_s"],
        "pass_mib": paging["bytes_read"] / max(paging["passes"], 1) / 2**20,
        "streamed_mib": paging["streamed_bytes"] / 2**20,
        "stall_s": paging["stall_s"],
        "kept": speculation["provisional_kept"] / max(speculation["provisional_drafted"], 1),
        "peak_mib": answer["memory"]["peak_bytes"] / 2**20,
        "budget_mib": answer["memory"]["budget_bytes"] / 2**20,
    }


def mmap_decode(path: Path, text: str, n_tokens: int) -> dict[str, float]:
    """llama.cpp alone, in this process, which is in the cgroups already."""
    from edgespec import session
    from edgespec.config import LoadSettings
    from reference import LlamaCpp

    with session.load(LoadSettings(model=embedded_pair().draft, ctx_size=N_CTX)) as small:
        prompt = small.encode(text)
    with LlamaCpp(path, N_CTX, n_threads=2) as model:
        token = int(model.decode(prompt).argmax())
        begun = time.perf_counter()
        for _ in range(n_tokens):
            token = int(model.decode([token]).argmax())
        return {"tokens_per_s": n_tokens / (time.perf_counter() - begun)}


def raw_read(path: Path, most_bytes: int = 1 << 30) -> float:
    """MB/s of direct reads of 4 MiB, one after the other, thrown away."""
    block = mmap.mmap(-1, 4 << 20)
    file = os.open(path, os.O_RDONLY | os.O_DIRECT)
    done, begun = 0, time.perf_counter()
    while done < most_bytes and (n := os.preadv(file, [block], done)) > 0:
        done += n
    os.close(file)
    return done / 1e6 / (time.perf_counter() - begun)


def drop_cache(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@contextmanager
def limits(memory_bytes: int, bytes_per_s: int | None, path: Path) -> Iterator[list[Path]]:
    """Cgroups that a process may enter, removed afterwards."""
    device = path.stat().st_dev
    name = f"edgespec-{os.getpid()}"
    groups = [CGROUPS / "memory" / name]
    groups[0].mkdir()
    (groups[0] / "memory.limit_in_bytes").write_text(str(memory_bytes))
    if bytes_per_s:
        groups.append(CGROUPS / "blkio" / name)
        groups[1].mkdir()
        (groups[1] / "blkio.throttle.read_bps_device").write_text(
            f"{os.major(device)}:{os.minor(device)} {bytes_per_s}"
        )
    try:
        yield groups
    finally:
        for group in groups:
            group.rmdir()


if __name__ == "__main__":
    main()
