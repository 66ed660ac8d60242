"""One process under a memory budget: what it loads and is asked for comes as JSON.

    python tests/matrix_process.py '{"embeds": false, "load": {...}, "rules": {...}, "ask": {...}}'

Prints the largest share of its budget that it took, by the kernel's count, and its texts' digests;
without "ask", the smallest budget and that of a resident model. `test_matrix.py` makes such
processes.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import edgespec
from edgespec.memory.cgroups import table
from edgespec.memory.process import process_rss_bytes
from edgespec.session.embedder import plan_embedder

N_CHANGES = 6
"""Budgets that a text meets in the middle, if it is to meet several."""


def main() -> None:
    spec = json.loads(sys.argv[1])
    if "ask" not in spec:
        print(json.dumps(sizes(spec)))
        return
    load = edgespec.LoadSettings(**spec["load"])
    ask = spec["ask"]
    print(json.dumps(embed(load, ask) if spec["embeds"] else write(load, _rules(spec), ask)))


def sizes(spec: dict[str, Any]) -> dict[str, Any]:
    """Plan in a process of its own with what a session imports: a forked one has fewer pages."""
    import edgespec_runtimes.gguf.entry  # noqa: F401

    load = edgespec.LoadSettings(**spec["load"])
    try:
        plan = plan_embedder(load) if spec["embeds"] else edgespec.plan(load, _rules(spec))
    except edgespec.EdgespecError as error:
        return {"error": str(error)}
    return {"smallest": plan.smallest_bytes, "whole": plan.planned_bytes}


def embed(load: edgespec.LoadSettings, ask: dict[str, Any]) -> dict[str, Any]:
    with edgespec.load_embedder(load) as embedder:
        texts = [text[: load.ctx_size // 2] for text in ask["prompts"]]
        return _said(load.memory_budget, [*map(_digest, embedder.embed(texts))])


def write(
    load: edgespec.LoadSettings, rules: edgespec.EngineSettings, ask: dict[str, Any]
) -> dict[str, Any]:
    options: dict[str, Any] = {"max_tokens": ask["max_tokens"]}
    samplings = [edgespec.SamplingParams(**one) for one in ask["samplings"]]
    if ask["extra"] == "grammar":
        options["grammar"] = edgespec.regular_expression("[a-z ]{1,200}")
    if ask["extra"] == "logprobs":
        options["logprobs"] = 5
    with edgespec.load(load, rules) as session:
        prompts = [session.encode(text)[: load.ctx_size * 3 // 4] for text in ask["prompts"]]
        if ask["chat"]:
            session.use_chat_template("chatml")
            prompts = [[{"role": "user", "content": text}] for text in ask["prompts"]]
        most = 0.0
        if ask["extra"] == "changes":
            most = change_in_the_middle(session, prompts[0], sampling=samplings[0], **options)
            _forget_peak()
            load = load.model_copy(update={"memory_budget": session.budget.budget_bytes})

        def write(prompt: Any, sampling: edgespec.SamplingParams) -> edgespec.GenerationResult:
            begin = session.chat if ask["chat"] else session.stream
            with begin(prompt, sampling=sampling, **options) as generation:
                deque(generation, maxlen=0)
                return generation.result

        results = []
        with ThreadPoolExecutor(2 * session.n_parallel) as pool:
            for sampling in samplings:
                results += pool.map(partial(write, sampling=sampling), prompts)
        texts = [result.tokens for result in results]
        verified = sum(result.speculation.verified for result in results)
        if ask["extra"] == "prefixes" and not ask["chat"]:
            session.generate([*prompts[-1], *texts[-1]], max_tokens=4)
        digests = [_digest(list(text)) for text in texts]
    said = _said(load.memory_budget, digests)
    return said | {"ratio": max(most, said["ratio"]), "verified": verified}


def change_in_the_middle(session: edgespec.Session, prompt: Any, **options: Any) -> float:
    """Write a text under other budgets from every other token on; the largest share that any of
    them was taken of, from the moment on when its change was done."""
    chance = random.Random(0)
    smallest, first = session.budget.smallest_bytes, session.budget.budget_bytes
    begin = session.chat if isinstance(prompt[0], dict) else session.stream
    most, budget = 0.0, first
    with begin(prompt, **options) as generation:
        for index, _ in enumerate(generation):
            if index % 2 == 0 and index < 2 * N_CHANGES:
                most = max(most, _peak_bytes() / budget)
                budget = chance.randint(smallest, max(smallest, first))
                session.set_memory_budget(budget)
                most = max(most, process_rss_bytes() / budget)
                _forget_peak()
    return max(most, _peak_bytes() / budget)


def _said(budget: Any, digests: list[str]) -> dict[str, Any]:
    return {"ratio": _peak_bytes() / int(budget), "digests": digests}


def _rules(spec: dict[str, Any]) -> edgespec.EngineSettings:
    return edgespec.EngineSettings(remember=False, **spec["rules"])


def _digest(text: list[Any]) -> str:
    return hashlib.sha256(repr(text).encode()).hexdigest()[:12]


def _peak_bytes() -> int:
    return table(Path("/proc/self/status"))["VmHWM"]


def _forget_peak() -> None:
    """Let the kernel's peak begin again at what is resident now."""
    Path("/proc/self/clear_refs").write_text("5")


if __name__ == "__main__":
    main()
