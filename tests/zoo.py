"""Holds edgespec against llama.cpp on a tiny model of every architecture that llama.cpp knows.

A program: `python tests/zoo.py --table` writes a row for each, `python tests/zoo.py NAME...` tries
out some. The tests use `verdicts`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import IO, cast

from edgespec.memory.process import usable_cores
from zoo_species import Species, all_species
from zoo_trials import DENSE, HALVES, WAYS, Verdict, ZooRun, try_out, verdict_of, warm_up


def ways_of(species: Species) -> Sequence[str]:
    """One half of the ways, the other one for the next species: a model meets paging and drafts,
    and both together are met on every second one. The dense one is tried in all ways."""
    half = HALVES[list(all_species()).index(species) % len(HALVES)]
    return tuple(WAYS) if species.name == DENSE else half


def verdicts(names: Sequence[str] = (), halves: bool = False) -> Iterator[Verdict]:
    """Verdicts on the named species or all, in their order, each as soon as it is found, in all
    ways or in `halves` of them; as many species are tried at once as there are cores. Raises
    CalledProcessError."""
    n_parts = usable_cores()
    command = [sys.executable, __file__, *names, *(["--halves"] if halves else []), "--part"]
    with ExitStack() as running:
        parts = [
            running.enter_context(
                subprocess.Popen(
                    [*command, f"{part}/{n_parts}"],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                )
            )
            for part in range(n_parts)
        ]
        for part in itertools.cycle(parts):
            if not (line := cast(IO[str], part.stdout).readline()):
                break
            yield verdict_of(json.loads(line))
    for part in parts:
        if part.returncode:
            raise subprocess.CalledProcessError(part.returncode, part.args)


def work(part: int, parts: int, names: Sequence[str], halves: bool) -> None:
    """Try out every `parts`th species; one line of JSON each."""
    warm_up()
    chosen = [species for species in all_species() if not names or species.name in names]
    with tempfile.TemporaryDirectory() as folder:
        for species in chosen[part::parts]:
            ways = ways_of(species) if halves else tuple(WAYS)
            print(json.dumps(asdict(try_out(species, Path(folder), ways))), flush=True)


def table(found: Sequence[Verdict]) -> Iterator[str]:
    """Markdown: a row for each species, and what they come to."""
    yield f"| architecture | {' | '.join(WAYS)} | guesses kept | peak of budget |"
    yield "| --- " * (len(WAYS) + 3) + "|"
    for verdict in found:
        if verdict.refusal:
            yield f"| {verdict.name} | refused: {verdict.refusal} |"
            continue
        cells = [_cell(verdict, way) for way in WAYS]
        kept = sum(run.accepted for run in verdict.runs.values())
        guessed = sum(run.drafted for run in verdict.runs.values())
        yield (
            f"| {verdict.name} | {' | '.join(cells)} | {kept} of {guessed} "
            f"| {100 * verdict.peak_share:.0f} % |"
        )
    yield ""
    yield _sums(found)


def _cell(verdict: Verdict, way: str) -> str:
    if way not in verdict.runs:
        return verdict.failures.get(way, "-").partition(" ")[0]
    run = verdict.runs[way]
    if not run.differences:
        return "identical"
    return f"{len(run.differences)} of {len(run.gaps)} (gap {max(run.differences):.3f})"


def _sums(found: Sequence[Verdict]) -> str:
    runs: list[ZooRun] = [run for verdict in found for run in verdict.runs.values()]
    differences = [gap for run in runs for gap in run.differences]
    n_wrong = sum(bool(verdict.complaints) for verdict in found)
    n_refused = sum(bool(verdict.refusal) for verdict in found)
    return (
        f"{len(found)} species: {n_refused} refused, {n_wrong} with a defect; "
        f"{len(differences)} of {sum(len(run.gaps) for run in runs)} tokens are not llama.cpp's "
        f"first choice, by {max(differences, default=0):.3f} at most"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="species; all when none is named")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--halves", action="store_true", help="try half of the ways on each")
    parser.add_argument("--table", action="store_true", help="write a table, no JSON")
    arguments = parser.parse_args()
    if arguments.part:
        part, parts = map(int, arguments.part.split("/"))
        work(part, parts, arguments.names, arguments.halves)
        return
    found = sorted(verdicts(arguments.names, arguments.halves), key=lambda verdict: verdict.name)
    if arguments.table:
        print("\n".join(table(found)))
    for verdict in found:
        if not arguments.table:
            print(json.dumps(asdict(verdict)))
        for complaint in verdict.complaints:
            print(f"{verdict.name}: {complaint}", file=sys.stderr)


if __name__ == "__main__":
    main()
