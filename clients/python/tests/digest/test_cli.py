"""The command line where pyarrow is not needed, or not there."""

import subprocess
import sys

import pytest

from larder import cli


def run(code: str) -> subprocess.CompletedProcess[str]:
    """Run Python code in a new process."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "words", [["--help"], ["digest", "--help"], ["digest", "build", "--help"], ["dataset", "--help"]]
)
def test_help_is_there(words, capsys):
    """Every level explains itself with status 0."""
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    assert ended.value.code == 0
    assert "usage: larder" in capsys.readouterr().out


def test_the_grammar_loads_nothing_heavy():
    """Help, wrong usage and `larder dataset` cost no import of pyarrow or numpy."""
    ran = run("import sys, larder.cli, larder.commands.dataset; print({'pyarrow', 'numpy'} & set(sys.modules))")
    assert ran.stdout == "set()\n"


def test_a_missing_extra_is_named():
    """Without pyarrow the command names the package to install."""
    code = "import sys; sys.modules['pyarrow'] = None; from larder.cli import main; sys.exit(main(['digest', 'show', 'f']))"
    ran = run(code)
    assert ran.returncode == 1
    assert ran.stderr == "larder: this needs pyarrow: pip install 'larder[digest]'\n"


def test_a_gateway_that_is_not_there_is_an_error_of_status_1(capsys, monkeypatch):
    """The address is in the message."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "GWA")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    assert cli.main(["dataset", "list", "--endpoint", "http://127.0.0.1:9"]) == 1
    assert "http://127.0.0.1:9 did not answer" in capsys.readouterr().err


def test_no_endpoint_is_wrong_usage(capsys, monkeypatch):
    """A missing endpoint gets status 2, and the message lists the ways to set it."""
    for name in ("LARDER_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    assert cli.main(["dataset", "list"]) == 2
    assert "LARDER_ENDPOINT" in capsys.readouterr().err
