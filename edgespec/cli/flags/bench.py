"""The flags of `edgespec bench` and its `--help` text. Values stay text."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import TypeVar

from edgespec.bench.settings import CTX_SIZE, QUICK, BenchSettings

Parser = TypeVar("Parser", bound=ArgumentParser)

_DESCRIPTION = """\
Measure ways of decoding on the same models, prompts and limits, and report tokens per second,
where the time went, memory and reads. Each run is a process of its own, begins with a cold page
cache, and the modes take turns."""

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

examples:
  edgespec bench --quick
      a first look at this machine, in a minute or two
  sudo edgespec bench --memory 50% --disk-bandwidth 300M --svg report.svg
      the embedded pair, its target enlarged to 1 GiB, as on a slow device
  edgespec bench -m big.gguf -md small.gguf --memory 4GiB --modes mmap,paged,auto --json a.json
  sudo edgespec bench -m big-onnx -md models/edgespec-draft-onnx-fp16 --disk-bandwidth 300M
      an ONNX pair: `edgespec models enlarge models/edgespec-target-onnx-fp16 big-onnx --size 1GiB`
      made its target
  sudo edgespec bench --disk-bandwidth 300M --modes mmap,auto-draft,auto --repetitions 1
      what guesses bring over mmap, and the free ones over the draft alone

Limits need the right to make control groups (Linux: root, or a systemd that delegates them). Where
that is not given, the bench says so and nothing but edgespec's own budget is limited."""


def add_to(parser: Parser) -> Parser:
    """Give `parser` the flags of a bench."""
    parser.description = _DESCRIPTION
    parser.epilog = _EPILOG
    defaults = {name: of.default for name, of in BenchSettings.model_fields.items()}
    models = parser.add_argument_group("models")
    models.add_argument(
        "-m",
        "--model",
        metavar="FILE",
        help="target, a GGUF file or an ONNX model's folder (default: the embedded one, enlarged)",
    )
    models.add_argument(
        "-md", "--model-draft", metavar="FILE", dest="draft", help="small model that guesses"
    )
    models.add_argument("--size", metavar="SIZE", help="of the enlarged target (default: 1GiB)")
    limits = parser.add_argument_group("limits of each run's process")
    limits.add_argument(
        "--memory",
        metavar="SIZE",
        help="1GiB, a share of target plus draft like 30%%, or unlimited (default: 50%%)",
    )
    limits.add_argument(
        "--disk-bandwidth",
        metavar="RATE",
        help="bytes per second like 300M, in decimal units as storage is sold (default: none)",
    )
    runs = parser.add_argument_group("runs")
    runs.add_argument(
        "--modes", metavar="LIST", help="names from below, with commas (default: all)"
    )
    for flag, metavar, setting, text in (
        (("-n", "--n-predict"), "N", "max_tokens", "tokens of a run"),
        (("--baseline-tokens",), "N", "baseline_tokens", "of modes with one token or so a pass"),
        (("--n-prompts",), "N", "n_prompts", "prompts"),
        (("--repetitions",), "N", "repetitions", "runs of each mode on each prompt"),
    ):
        help_text = f"{text} (default: {defaults[setting]}, with --quick {QUICK[setting]})"
        runs.add_argument(*flag, metavar=metavar, dest=setting, help=help_text)
    runs.add_argument("--quick", action="store_true", help="few, short runs: a first look")
    runs.add_argument(
        "--prompts",
        metavar="FILE",
        help="one a line, or in .jsonl an object's `prompt` (default: Python code begun)",
    )
    runs.add_argument(
        "-c", "--ctx-size", metavar="N", help=f"context in tokens (default: {CTX_SIZE})"
    )
    runs.add_argument("-t", "--threads", metavar="N", help="(default: the physical cores)")
    output = parser.add_argument_group("output")
    output.add_argument(
        "--json",
        metavar="FILE",
        nargs="?",
        const="-",
        help="everything that was measured; without FILE on stdout, the table then on stderr",
    )
    output.add_argument("--svg", metavar="FILE", help="tokens per second by mode as a picture")
    return parser
