"""A GPU beside the pair: what tuning asks of it, chooses and proposes. None is needed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edgespec.cli import entry
from edgespec.cli import tune as tune_command
from edgespec.config import LoadSettings, read_config
from edgespec.errors import EdgespecError, ModelError
from edgespec.models.embedded import embedded_pair
from edgespec.tuning import report
from edgespec.tuning.cost_model import Choice
from edgespec.tuning.measurements import Written
from edgespec.tuning.offloads import Offload, offloads
from edgespec.tuning.search import Tuned, tune
from edgespec_runtimes.gguf.options import GgufOptions
from edgespec_runtimes.onnx.options import OnnxOptions
from tuning_lab import BETTER, DRAFT, MIB, SyntheticLab, wanted

ALL_OF_THE_DRAFT = Offload("-ngld 25", (("n_gpu_layers_draft", 25),))
FAST_DISK = 3000 * MIB


def slow_to_draft(**more: object) -> SyntheticLab:
    """Passes are short, and a draft's step is shorter on the GPU."""
    usual = {"disk_bytes_per_s": FAST_DISK, "node_s": 0.002, "step_s": 0.03, "gpu_step_s": 0.002}
    return SyntheticLab(**{**usual, **more})  # type: ignore[arg-type]


def tuned_with(lab: SyntheticLab, **load: object) -> Tuned:
    return tune(lab, wanted(DRAFT, **load))  # type: ignore[arg-type]


def test_a_draft_that_a_gpu_computes_faster_goes_there():
    tuned = tuned_with(slow_to_draft())
    assert tuned.chosen.offload == ALL_OF_THE_DRAFT and tuned.gain > 0.1


def test_its_prediction_is_that_of_the_run():
    lab = slow_to_draft()
    tuned = tuned_with(lab)
    assert tuned.best.predicted.tokens_per_s == pytest.approx(
        lab.truth(tuned.chosen).tokens_per_s, rel=0.05
    )


def test_a_draft_that_a_gpu_computes_slower_stays():
    assert tuned_with(slow_to_draft(gpu_step_s=0.1)).chosen.offload is None


def test_without_a_gpu_nothing_is_asked_of_it():
    tuned = tuned_with(slow_to_draft(gpu_step_s=None))
    assert not tuned.measured.offloaded and not tuned.gpu_shares
    assert {trial.choice.offload for trial in tuned.trials} == {None}
    assert not any("GPU" in line for line in report.lines(tuned))


def test_a_gpu_without_room_for_the_draft_does_not_end_tuning():
    said: list[str] = []
    tuned = tune(slow_to_draft(gpu_layers=0), wanted(DRAFT), said.append)
    assert tuned.chosen.offload is None
    assert "left out: -ngld 25 (the GPU is full)" in said


def test_a_gpu_that_cannot_be_asked_is_said_and_left_alone(monkeypatch: pytest.MonkeyPatch):
    def fail(models: object) -> None:
        raise EdgespecError("the driver is of another version")

    lab, said = slow_to_draft(), list[str]()
    monkeypatch.setattr(lab, "gpus", fail)
    assert tune(lab, wanted(DRAFT), said.append).chosen.offload is None
    assert "no GPU is considered: the driver is of another version" in said


def test_layers_that_the_user_settled_stay():
    tuned = tuned_with(slow_to_draft(), n_gpu_layers_draft=0, n_gpu_layers=0)
    assert tuned.chosen.offload is None and not tuned.gpu_shares


def test_a_gpu_that_fails_beside_the_target_does_not_end_tuning(monkeypatch: pytest.MonkeyPatch):
    lab = slow_to_draft()
    write = lab.write

    def fail(load: LoadSettings, *rest: Any, **more: Any) -> Written:
        if GgufOptions.of(load.options.get("gguf")).n_gpu_layers_draft:
            raise ModelError("no room beside the target")
        return write(load, *rest, **more)

    monkeypatch.setattr(lab, "write", fail)
    tuned = tune(lab, wanted(DRAFT, settled=["draft_max", "no_overlap", "threads"]))
    assert len(tuned.trials) == 2 and tuned.is_usual
    assert tuned.untried is None, "it was tried"
    assert "left out: -ngld 25 (no room beside the target)" in tuned.notes


def test_memory_that_a_gpus_library_takes_beyond_the_budget_is_not_taken():
    tuned = tuned_with(slow_to_draft(gpu_bytes=200 * MIB))
    assert tuned.chosen.offload is None
    assert any("-ngld 25, whose run took" in note for note in tuned.notes)


def test_shares_of_the_target_are_run_and_never_chosen():
    tuned = tuned_with(SyntheticLab(disk_bytes_per_s=FAST_DISK, gpu_step_s=0.001))
    assert [share.says for share in tuned.gpu_shares] == ["-ngl 6", "-ngl 12", "-ngl 25"]
    quarter, half, whole = (share.tokens_per_s for share in tuned.gpu_shares)
    assert tuned.best.tokens_per_s < quarter < half < whole
    assert "n_gpu_layers" not in report.preset_settings(tuned)


def test_a_share_that_does_not_fit_is_left_out_with_its_reason():
    tuned = tuned_with(SyntheticLab(disk_bytes_per_s=FAST_DISK, gpu_step_s=0.001, gpu_layers=12))
    assert [share.says for share in tuned.gpu_shares] == ["-ngl 6", "-ngl 12"]
    assert "left out: -ngl 25 (the GPU is full)" in tuned.notes


def test_time_that_is_over_leaves_no_run_of_a_share():
    assert not tuned_with(slow_to_draft(left_s=0.0)).gpu_shares


def test_each_draft_has_layers_of_its_own():
    lab, asked = slow_to_draft(), wanted(DRAFT, BETTER)
    on_gpu = [
        replace(gpu, n_layers=n) for gpu, n in zip(lab.gpus([DRAFT, BETTER]), (3, 7), strict=True)
    ]
    found = [
        offload.says for d in asked.drafts for offload in offloads(asked.load, on_gpu, d, "draft")
    ]
    assert found == ["-ngld 4", "-ngld 8"]


def test_a_choice_says_its_options_and_loads_them():
    choice = Choice(DRAFT, 4, offload=ALL_OF_THE_DRAFT)
    assert report.choice_line(choice, Choice(DRAFT, 4)) == "-ngld 25"
    options = choice.load(wanted(DRAFT, cache_type_k="q8_0").load).options["gguf"]
    assert options == GgufOptions(cache_type_k="q8_0", n_gpu_layers_draft=25)


def test_onnx_models_are_on_the_gpu_without_being_asked():
    assert not OnnxOptions().on_gpu("target", 24) and not OnnxOptions().on_gpu("draft", 24)


def test_small_models_have_no_empty_shares():
    assert list(GgufOptions().on_gpu("target", 2)) == ["-ngl 1", "-ngl 3"]


@pytest.mark.usefixtures("own_cache_folder")
def test_what_changes_the_text_is_proposed_with_what_it_brought(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    lab = slow_to_draft(alphas={embedded_pair().draft: 0.7})
    monkeypatch.setattr(tune_command, "_laboratory", lambda *_: lab)
    out = tmp_path / "preset.toml"
    command = ["tune", "--memory-budget", "100MiB", "--out", str(out)]
    assert entry.main(command) == 0
    text = capsys.readouterr().out
    assert "What would help, measured, to" in text and "-ngl 25, which changes the text: " in text
    assert "a GPU; 1,000 MB/s with copies of 1.0 MiB" in text
    settings = read_config(out)
    assert settings["n_gpu_layers_draft"] == 25 and "n_gpu_layers" not in settings
    assert "-ngl 25, which changes the text" in out.read_text()
    assert entry.main([*command, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {lever["measured"] for lever in told["levers"]} == {False, True}
    assert told["gpus"][0]["bytes_per_s"] == 1e9
