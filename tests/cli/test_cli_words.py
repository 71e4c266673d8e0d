"""Words of the command line: those that it does not know, and the grammar of those that it does."""

from __future__ import annotations

import pytest

from gateway import cli
from gateway.cli import main
from larder.cli import main as users_main


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


def test_a_command_makes_no_other_commands_grammar(monkeypatch, capsys):
    """Rule: a command makes its own grammar only, because every start of a gateway would wait for those of all others."""
    made = []

    class Counted(cli.Parser):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            made.append(self.prog)

    monkeypatch.setattr(cli, "Parser", Counted)
    with pytest.raises(SystemExit):
        cli.main(["serve", "--help"])
    assert "--workers" in capsys.readouterr().out
    assert made == ["larder-gateway", "larder-gateway serve", "larder-gateway help"]
