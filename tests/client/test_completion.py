"""`blockdraft completion` in a real shell."""

import subprocess
import sys

import pytest

from blockdraft_client.cli.completion import SHELLS
from blockdraft_client.cli.main import main


def completed(line: str) -> list[str]:
    """Return what bash offers for the last word of a command line."""
    script = subprocess.run(
        [sys.executable, "-m", "blockdraft", "completion", "bash"], capture_output=True, check=True
    ).stdout.decode()
    words = line.split(" ")
    ask = f"""
        COMP_WORDS=({" ".join(words)}) COMP_CWORD={len(words) - 1} COMP_LINE="{line}"
        _shtab_blockdraft
        printf "%s\\n" "${{COMPREPLY[@]}}"
    """
    answer = subprocess.run(["bash", "-c", script + ask], capture_output=True, check=True)
    return answer.stdout.decode().split()


@pytest.mark.parametrize(
    ("line", "offer"),
    [
        ("blockdraft ver", {"verifier", "version"}),
        ("blockdraft serve --max-w", {"--max-waiting"}),
        ("blockdraft serve --hang", {"--hang-timeout"}),
        ("blockdraft train ea", {"eagle3"}),
        ("blockdraft completion z", {"zsh"}),
    ],
)
def test_commands_and_flags_are_offered(line: str, offer: set[str]) -> None:
    assert offer == set(completed(line))


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_has_a_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert "max-waiting" in capsys.readouterr().out
