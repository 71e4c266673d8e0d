"""Words that the command line does not know, and their completion by a shell."""

from __future__ import annotations

import subprocess

import pytest

from gateway.cli import main
from larder.cli import main as users_main

_ASK = """
{script}
COMP_WORDS=(larder-gateway {words}) COMP_CWORD={at}
_shtab_larder_gateway
echo "${{COMPREPLY[@]}}"
"""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["statsu"], "'statsu' is no command; did you mean 'status'?"),
        (["nodes", "drian", "a"], "'drian' is no command; did you mean 'drain'?"),
        (["completion", "bahs"], "'bahs' is no value of SHELL; did you mean 'bash'?"),
        (["nodes", "xyzzy"], "'xyzzy' is no command; there are list, dismiss, drain, undrain"),
    ],
)
def test_a_mistyped_word_is_answered_by_a_proposal(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rule: the message for an invalid choice names the nearest choice, or all of them."""
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "at", "proposed"), [("sta", 1, "status"), ("nodes dr", 2, "drain"), ("nodes drain --en", 3, "--endpoint")]
)
def test_bash_completes_commands_and_options(
    words: str, at: int, proposed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rule: with the printed script, bash completes commands, their subcommands and options."""
    assert main(["completion", "bash"]) == 0
    script = _ASK.format(script=capsys.readouterr().out, words=words, at=at)
    ran = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert proposed in ran.stdout.split()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["dataset", "lst"], "'lst' is no command; did you mean 'list'?"),
        (["digest", "bild"], "'bild' is no command; did you mean 'build'?"),
        (
            ["datasets", "register", "a", "b", "--caching", "ful"],
            "'ful' is no value of --caching; did you mean 'full'?",
        ),
    ],
)
def test_the_users_command_proposes_too(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Rule: ``larder`` answers a mistyped word as ``larder-gateway`` does."""
    with pytest.raises(SystemExit) as stop:
        users_main(words)
    assert stop.value.code == 2
    assert said in capsys.readouterr().err
