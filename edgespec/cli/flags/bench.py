"""The flags of `edgespec bench` and its `--help` text. Values stay text."""

from __future__ import annotations

from argparse import ArgumentParser

from edgespec.bench.settings import QUICK, BenchSettings
from edgespec.cli.flags import groups

_DESCRIPTION = """\
Measure ways of decoding on the same models, prompts and limits, and report tokens per second,
memory and reads. Each run is a process of its own, begins with a cold page cache, and the modes
take turns."""

_EPILOG = """\
modes:
  mmap            the model's own library, llama.cpp or onnxruntime, weights mapped from the file
  resident        the same, weights in memory and packed as it likes them best, where they fit
  llama-linear    llama.cpp's linear speculation, both models mapped; -3 with its newer defaults;
                  not for ONNX
  paged           edgespec without a draft
  linear          one branch of a fixed length
  tree-adaptive   LLMCad's tree and threshold
  lookup          no draft model: guesses from the text itself and from the target's own words
  auto            edgespec with its defaults: what a user gets; auto-draft without lookup
and always raw: a plain loop of direct reads.

Each mode runs greedily, and once more as `edgespec chat` samples (--temp), as `auto @0.8`. That
doubles the time; --temp 0 leaves it out, as --quick does. Sampled texts of edgespec's modes are
equal, too; a library draws with random numbers of its own.

Of several drafts (-md A -md B) each runs in every mode that drafts, as a row of its own: `auto A`
is draft A with guesses from the text, `auto-draft A` without them, and `lookup` those guesses
alone. Name the target itself for its own layer (MTP). A draft that cannot guess for the target is
left out, with the reason.

examples:
  edgespec bench --quick
      a first look at this machine, in a minute or two
  sudo edgespec bench --memory 50% --disk-bandwidth 300M --svg report.svg
      the embedded pair, its target enlarged to 1 GiB, as on a slow device
  edgespec bench -m big.gguf -md small.gguf --memory 4GiB --modes mmap,paged,auto --json a.json
  sudo edgespec bench -m big-onnx -md models/edgespec-draft-onnx-fp16 --disk-bandwidth 300M
      an ONNX pair
  sudo edgespec bench --pair smollm2 --prompts models/smollm2/conversation.jsonl
      a real model, enlarged, on conversations (prompts of edgespec's repository)
  sudo edgespec bench -m big.gguf -md small.gguf -md head.gguf --modes paged,lookup,auto-draft,auto
      which draft, alone and with lookups: tokens per pass, tokens/s, to no draft, memory
  sudo edgespec bench --disk-bandwidth 300M --modes mmap,auto-draft,auto --repetitions 1
      what guesses bring over mmap, and the free ones over the draft alone
  sudo edgespec bench --disk-bandwidth 300M --modes mmap,auto --parallel 1,2,4,8 -n 32
      several texts at once, beside llama.cpp's own batched decoding of as many (one KV cache, no
      draft, as its server's slots)

Limits need the right to make control groups (Linux: root, or a systemd that delegates them). Where
that is not given, the bench says so and nothing but edgespec's own budget is limited."""


def add_to(parser: ArgumentParser) -> None:
    parser.description = _DESCRIPTION
    parser.epilog = _EPILOG
    models = parser.add_argument_group("models")
    usual = {"size": "1GiB"}
    groups.add(models, BenchSettings, usual, model="-m FILE", draft="-md FILE", size="SIZE")
    groups.add(models, BenchSettings, pair="NAME")
    limits = parser.add_argument_group("limits of each run's process")
    groups.add(limits, BenchSettings, memory="SIZE", disk_bandwidth="RATE")
    runs = parser.add_argument_group("runs")
    quick = {
        name: f"{BenchSettings.model_fields[name].default}, with --quick {value}"
        for name, value in QUICK.items()
    } | {"temperature": f"{groups.MEASURED_TEMPERATURE}; with --quick 0"}
    groups.add(runs, BenchSettings, quick, modes="LIST", max_tokens="-n N", baseline_tokens="N")
    groups.add(runs, BenchSettings, quick, n_prompts="N", repetitions="N", prompts="FILE")
    groups.add(runs, BenchSettings, quick, parallel="LIST", temperature="T")
    groups.add(runs, BenchSettings, ctx_size="-c N", threads="-t N")
    runs.add_argument("--quick", action="store_true", help="few, short runs: a first look")
    output = parser.add_argument_group("output")
    output.add_argument(
        "--json",
        metavar="FILE",
        nargs="?",
        const="-",
        help="everything that was measured; without FILE on stdout, the table then on stderr",
    )
    output.add_argument("--svg", metavar="FILE", help="tokens per second by mode as a picture")
