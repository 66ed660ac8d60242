"""`edgespec bench` from the command line: what is refused, what applies, and one small bench."""

from __future__ import annotations

import json
import shutil
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench_rows import KNOWN
from edgespec.bench import child
from edgespec.bench.bench_runs import ModelSurvey, applicable, named_drafts
from edgespec.bench.bench_settings import BenchSettings
from edgespec.bench.modes import BenchDraft, known_modes, with_drafts
from edgespec.cli import command_line
from edgespec.cli.commands import bench
from edgespec.cli.commands.bench import chosen_prompts
from edgespec.cli.flags import groups
from edgespec.cli.flags import parser as flags
from edgespec.engine.settings import EngineSettings
from edgespec.errors import Sentence, setting
from edgespec.memory.budget import MIB
from edgespec.models import packaged
from edgespec.models.embedded import embedded_pair
from edgespec.models.model_files import copies, files_of, largest_of, size_of
from edgespec.session import session
from edgespec.settings.base import in_flags
from edgespec.settings.config import LoadSettings, SamplingParams


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("-m target --memory-budget half", "half"),
        ("--read-limit 50%", "--read-limit"),
        ("--quik", "--quick"),
        ("--json /nonexistent/a.json", "a.json"),
        ("--repetitions 0", "--repetitions 0"),
        ("--temp warm", "--temp warm"),
        ("--parallel 2", "--parallel"),
    ],
)
def test_what_cannot_be_meant_is_refused(capsys, words: str, message: str):
    assert command_line.main(["bench", *words.split()]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_an_unknown_mode_is_refused_before_anything_is_made(capsys, monkeypatch):
    pytest.importorskip("llama_cpp")
    monkeypatch.setattr(bench.demo, "enlarged", lambda *args: pytest.fail("made a model"))
    assert command_line.main(["bench", "--modes", "mmap,pagd"]) == 2
    assert "unknown mode 'pagd'; did you mean 'paged'?" in capsys.readouterr().err


def test_help_names_every_mode(capsys):
    pytest.importorskip("llama_cpp")
    from edgespec_runtimes.gguf import runtime

    with pytest.raises(SystemExit):
        flags.parse(["bench", "--help"])
    out = capsys.readouterr().out
    for mode in known_modes(runtime.baselines.BASELINES):
        assert mode.name in out or mode.name.removesuffix("-3") in out


def settings_of(*words: str) -> BenchSettings:
    return groups.given(flags.parse(["bench", *words]), BenchSettings)


def test_quick_gives_way_to_what_is_said():
    settings = settings_of("--quick", "-n", "7")
    assert (settings.repetitions, settings.max_tokens) == (1, 7)
    assert (len(chosen_prompts(settings)), len(chosen_prompts(settings_of()))) == (1, 3)


def test_modes_that_draft_need_a_draft():
    modes, left_out = applicable(KNOWN, ModelSurvey(100, {}), 1000)
    assert [mode.name for mode in modes] == ["mmap", "resident", "paged", "lookup"]
    assert all("no draft" in gone.reason for gone in left_out)


def test_a_library_cannot_draft_with_a_model_of_another_runtime():
    known = with_drafts(KNOWN, [BenchDraft(Path("d"), "d", in_library=False)])
    modes, (gone,) = applicable(known, ModelSurvey(100, {}), 1000)
    assert (gone.mode, gone.reason) == ("spec", "its library cannot run this draft")
    assert len(modes) == len(KNOWN) - 1


def test_llama_cpp_s_speculation_is_for_whole_models():
    pytest.importorskip("llama_cpp")
    pair, head = embedded_pair(), packaged.models()["smollm2"].head
    assert head is not None
    drafts = named_drafts([pair.draft, head.path], pair.target)
    assert [draft.in_library for draft in drafts] == [True, False]


def test_of_several_drafts_each_drafts_in_each_mode():
    known = with_drafts(KNOWN, [BenchDraft(Path(f"{name}.gguf"), name) for name in "ab"])
    modes, left_out = applicable(known, ModelSurvey(100, {Path("b.gguf"): "other tokens"}), 1000)
    drafting = [mode for mode in KNOWN if mode.drafts]
    assert [mode.name for mode in known if mode.draft] == [
        f"{mode.strategy} {name}" for mode in drafting for name in "ab"
    ]
    assert [mode.name for mode in modes if mode.drafts] == [f"{m.strategy} a" for m in drafting]
    assert [(gone.mode, gone.reason) for gone in left_out] == [
        (f"{mode.strategy} b", "other tokens") for mode in drafting
    ]
    assert known[-1].at(0.8).name == "auto b @0.8"


def test_prompts_are_named_by_number_and_beginning(tmp_path: Path):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "def one(text):\\n    pass"}\n\n{"prompt": "two\\n"}\n')
    prompts = chosen_prompts(BenchSettings(prompts=path))
    assert [prompt.name for prompt in prompts] == ["1 def one(text):", "2 two"]
    assert prompts[1].text == "two\n"


def test_a_split_file_is_all_its_parts(tmp_path: Path):
    for number in (1, 2):
        (tmp_path / f"big-0000{number}-of-00002.gguf").write_bytes(bytes(number))
    first = tmp_path / "big-00001-of-00002.gguf"
    assert size_of(first) == 3
    assert largest_of(first).name == "big-00002-of-00002.gguf"


def test_an_onnx_model_is_its_graph_and_its_weights(tmp_path: Path):
    pytest.importorskip("onnxruntime", reason="the ONNX runtime is not installed")
    from onnx_files import DATA_FILE, write_llama

    model = write_llama(tmp_path)
    (tmp_path / "other.bin").write_bytes(bytes(1 << 20))
    assert {path.name for path in files_of(tmp_path)} == {"model.onnx", DATA_FILE}
    assert files_of(model) == files_of(tmp_path)
    assert largest_of(tmp_path).name == DATA_FILE


def test_copies_that_runtimes_keep_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert copies() == []
    copy = tmp_path / "edgespec" / "onnx" / "0.weights"
    copy.parent.mkdir(parents=True)
    copy.write_bytes(b"weights")
    assert copies() == [copy]


@pytest.fixture
def unenlarged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The embedded pair as it is: a bench of seconds."""
    target = tmp_path / "target.gguf"
    shutil.copy(embedded_pair().target, target)
    monkeypatch.setattr(bench.demo, "enlarged", lambda *_: target)


def test_half_of_a_small_model_is_no_budget():
    """A bench of a model of 98 MB was refused, whatever it was asked for."""
    limited = bench._limited(LoadSettings(model=embedded_pair().target))
    budget = int(bench.BUDGET_SHARE * limited.memory_budget)
    assert session.plan(limited.but({"memory_budget": budget})).smallest_bytes <= budget
    given = LoadSettings(model=embedded_pair().target, memory_budget="5MiB")
    assert bench._limited(given).memory_budget == 5 * MIB


def test_a_note_of_a_run_names_flags(monkeypatch: pytest.MonkeyPatch):
    """It named `draft=None`: marks were lost on the way from the run's process."""
    nothing = SimpleNamespace(round_costs=(), sources={}, prompt_s=0.0, decode_s=0.0)
    result = SimpleNamespace(
        speculation=nothing, timings=nothing, tokens=[], prompt_tokens=[], notes=()
    )
    running = SimpleNamespace(
        plan=SimpleNamespace(notes=(Sentence(f"slower ({setting.draft(None)})"),)),
        generate=lambda *_: result,
        load_report={"total": 0.0},
    )
    monkeypatch.setattr(child.session, "load", lambda *_: nullcontext(running))
    run = child.decode(LoadSettings(model="m"), EngineSettings(), "", 1, SamplingParams())
    assert [in_flags(note) for note in json.loads(json.dumps(run.notes))] == ["slower (--no-draft)"]


@pytest.mark.slow
def test_a_small_bench_from_end_to_end(tmp_path: Path, unenlarged: None, capsys):
    """Two modes write the same four tokens greedily, and others as chat samples: the target's
    makers recommend nothing. Every output holds all of it."""
    pytest.importorskip("llama_cpp")
    words = "--memory-budget auto --modes mmap,auto -n 4 --quick --temp 0.8 -t 1"
    data = tmp_path / "a.json"
    assert command_line.main(["bench", *words.split(), "--json", str(data), "--share"]) == 0
    out, err = capsys.readouterr()
    assert "nothing was limited" in err
    assert "[5/5]" in err
    content, shared = json.loads(data.read_text()), json.loads(out)
    assert shared["model_bytes"] == content["target"]["size_bytes"]
    assert list(shared["modes"]) == [mode["name"] for mode in content["modes"]]
    assert str(tmp_path) not in out
    names = ["mmap", "auto", "mmap @0.8", "auto @0.8"]
    assert [mode["name"] for mode in content["modes"]] == names
    assert [mode["temperature"] for mode in content["modes"]] == [0, 0, 0.8, 0.8]
    sampling = {name: content["sampling"][name] for name in ("temperature", "top_k", "seed")}
    assert sampling == {"temperature": 0.8, "top_k": 40, "seed": 0}
    assert content["limits"]["method"] == "unlimited"
    assert content["raw_bytes_per_s"]["median"] > 0
    mmap, auto, sampled_mmap, sampled_auto = content["modes"]
    assert auto["agreement"] == {"tokens": 4, "compared": 4}
    assert mmap["tokens_per_pass"] == sampled_mmap["tokens_per_pass"] == 1.0
    assert sampled_mmap["agreement"] is None
    assert sampled_auto["reference"] == "mmap @0.8"


@pytest.mark.slow
def test_sampled_texts_of_all_modes_are_equal(unenlarged: None, capsys):
    pytest.importorskip("llama_cpp")
    words = "--memory-budget auto --modes mmap,paged,lookup,auto -n 16 --quick --temp 1 -t 1"
    assert command_line.main(["bench", *words.split(), "--json"]) == 0
    mmap, *ours = json.loads(capsys.readouterr().out)["modes"][4:]
    assert mmap["agreement"] is None
    assert [mode["agreement"] for mode in ours] == 3 * [{"tokens": 16, "compared": 16}]


@pytest.mark.slow
def test_a_target_that_guesses_for_itself_needs_no_draft(tmp_path: Path, capsys):
    pytest.importorskip("llama_cpp")
    from zoo_files import write_guessing

    target, data = write_guessing(tmp_path / "m.gguf", "glm4moe", knows=True), tmp_path / "a.json"
    words = "--memory-budget auto --modes llama-linear-3,auto -n 4"
    words += " --quick -t 1"
    command = ["bench", "-m", str(target), *words.split(), "--json", str(data)]
    assert command_line.main(command) == 0
    content = json.loads(data.read_text())
    assert [mode["name"] for mode in content["modes"]] == ["auto"]
    assert [draft["file"] for draft in content["drafts"]] == [target.name]
    assert "its library cannot run this draft" in "".join(capsys.readouterr())


@pytest.mark.slow
def test_a_small_bench_of_an_onnx_pair(tmp_path: Path, capsys):
    """Against onnxruntime, which the report names and no other library."""
    pytest.importorskip("onnxruntime", reason="the ONNX runtime is not installed")
    from onnx_files import write_llama

    for name, layers in (("target", 2), ("draft", 1)):
        write_llama(tmp_path / name, layers=layers)
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("def read_lines\n")
    words = (
        f"-m {tmp_path / 'target'} -md {tmp_path / 'draft'} --memory-budget auto "
        f"--modes mmap,auto -n 4 --prompts {prompts} --repetitions 1 "
        "-c 64 -t 1 --temp 0"
    )
    data = tmp_path / "a.json"
    assert command_line.main(["bench", *words.split(), "--json", str(data)]) == 0
    content = json.loads(data.read_text())
    assert "onnxruntime" in content["versions"]
    mmap, auto = content["modes"]
    assert auto["agreement"] == {"tokens": 4, "compared": 4}
    assert mmap["tokens_per_pass"] == 1.0
    assert "llama.cpp" not in capsys.readouterr().out


@pytest.mark.slow
def test_a_budget_that_cannot_work_is_exit_code_4(unenlarged: None, capsys):
    pytest.importorskip("llama_cpp")
    assert (
        command_line.main(["bench", "--memory-budget", "50MiB", "--modes", "auto", "--quick"]) == 4
    )
    assert "raise --memory-budget" in capsys.readouterr().err
