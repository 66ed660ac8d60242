"""Scripts with which shells complete commands and flags."""

import shutil
import subprocess

import pytest

from edgespec.cli.command_line import main


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_every_command_is_completed(shell, capsys):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for name in ("generate", "chat", "serve", "models", "--memory-budget", "--json-schema"):
        assert name in script


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes_a_flag(capsys, tmp_path):
    main(["completion", "bash"])
    script = tmp_path / "edgespec.bash"
    script.write_text(capsys.readouterr().out)
    asked = (
        f"source {script}; COMP_WORDS=(edgespec generate --memory-b); COMP_CWORD=2; "
        "_shtab_edgespec; echo ${COMPREPLY[@]}"
    )
    done = subprocess.run(
        ["bash", "-c", asked], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.split() == ["--memory-budget"], done.stderr
