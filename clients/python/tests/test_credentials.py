"""Sources of access keys."""

import os
import pickle
import sys
import types

import pytest

from larder.base.errors import CredentialsMissing
from larder.http.credentials import Credentials, CredentialSource, endpoint_of, find

ENVIRONMENT = {"AWS_ACCESS_KEY_ID": "env key", "AWS_SECRET_ACCESS_KEY": "env secret"}


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A home directory of one's own, an environment without AWS, and no botocore."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "LARDER_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setitem(sys.modules, "botocore.session", None)
    (tmp_path / ".aws").mkdir()
    return tmp_path


def _write(home, file, text):
    (home / ".aws" / file).write_text(text)


def test_the_environment(monkeypatch):
    """The AWS variables give key, secret, token and region."""
    for name, value in {**ENVIRONMENT, "AWS_SESSION_TOKEN": "token", "AWS_REGION": "eu-west-1"}.items():
        monkeypatch.setenv(name, value)
    assert find()() == Credentials("env key", "env secret", "token", "eu-west-1")


def test_arguments_come_first(monkeypatch):
    """Given credentials take precedence over all other sources."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "other")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "other")
    given = Credentials("given", "secret")
    assert CredentialSource(given).current() is given


def test_the_files(home):
    """The credentials file gives the key, the config file the region."""
    _write(home, "credentials", "[default]\naws_access_key_id = a\naws_secret_access_key = b%c\n")
    _write(home, "config", "[default]\nregion = eu-north-1\n")
    assert find()() == Credentials("a", "b%c", None, "eu-north-1")


def test_the_environment_comes_before_the_files(home):
    """The environment takes precedence over the files, like in the AWS SDKs."""
    _write(home, "credentials", "[default]\naws_access_key_id = a\naws_secret_access_key = b\n")
    assert find(environment={"HOME": str(home), **ENVIRONMENT})().access_key_id == "env key"


@pytest.mark.parametrize("how", ["variable", "argument"])
def test_profiles(home, how):
    """AWS_PROFILE and the argument choose a profile; the config file's section has the word "profile"."""
    _write(home, "config", "[profile lab]\naws_access_key_id = p\naws_secret_access_key = q\nregion = ap-east-1\n")
    environment = {"HOME": str(home), **({"AWS_PROFILE": "lab"} if how == "variable" else ENVIRONMENT)}
    found = find(profile="lab" if how == "argument" else None, environment=environment)
    assert found() == Credentials("p", "q", None, "ap-east-1")


def test_files_elsewhere(home, tmp_path):
    """The variables for the files' places are followed."""
    file = tmp_path / "keys"
    file.write_text("[default]\naws_access_key_id = a\naws_secret_access_key = b\n")
    assert find(environment={"HOME": str(home), "AWS_SHARED_CREDENTIALS_FILE": str(file)})().access_key_id == "a"


@pytest.mark.parametrize("text", ["no section", "[default]\nhalf", "[default]\naws_access_key_id = a\n", "\x00"])
def test_files_that_say_nothing(home, text):
    """Damaged and incomplete files count as absent."""
    _write(home, "credentials", text)
    with pytest.raises(CredentialsMissing):
        find()


def test_nothing_anywhere():
    """Without credentials, the error names every source that was tried, and the remedy."""
    with pytest.raises(CredentialsMissing) as caught:
        CredentialSource().current()
    for place in ("AWS_ACCESS_KEY_ID", "~/.aws/credentials", "'default'", "botocore", "Credentials("):
        assert place in str(caught.value)


def test_botocores_chain_is_the_last(monkeypatch):
    """Roles and the like come from botocore, which renews them: each request asks for the current ones."""
    frozen = iter([types.SimpleNamespace(access_key=name, secret_key="s", token="t") for name in ("first", "second")])
    chain = types.SimpleNamespace(get_frozen_credentials=lambda: next(frozen))
    module = types.ModuleType("botocore.session")
    module.Session = lambda profile=None: types.SimpleNamespace(get_credentials=lambda: chain)
    errors = types.ModuleType("botocore.exceptions")
    errors.BotoCoreError = type("BotoCoreError", (Exception,), {})
    monkeypatch.setitem(sys.modules, "botocore", types.ModuleType("botocore"))
    monkeypatch.setitem(sys.modules, "botocore.session", module)
    monkeypatch.setitem(sys.modules, "botocore.exceptions", errors)
    source = CredentialSource()
    assert [source.current().access_key_id for _ in range(2)] == ["first", "second"]


def test_secrets_are_not_shown():
    """The text forms hide what must stay secret."""
    text = repr(Credentials("AK", "my secret", "my token")) + str(Credentials("AK", "my secret", "my token"))
    assert "AK" in text
    assert "my" not in text


def test_what_was_found_is_looked_for_again_after_forgetting(home):
    """A file that was renewed is read again; given credentials cannot change."""
    _write(home, "credentials", "[default]\naws_access_key_id = old\naws_secret_access_key = b\n")
    source = CredentialSource()
    assert source.current().access_key_id == "old"
    _write(home, "credentials", "[default]\naws_access_key_id = new\naws_secret_access_key = b\n")
    assert source.current().access_key_id == "old"
    assert source.forget()
    assert source.current().access_key_id == "new"
    assert not CredentialSource(Credentials("a", "b")).forget()


def test_a_source_that_was_used_can_be_pickled(monkeypatch):
    """A pickled source has no credentials; the other process finds its own."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    source = CredentialSource()
    source.current()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "there")
    assert pickle.loads(pickle.dumps(source)).current().access_key_id == "there"


def test_a_forked_child_looks_for_itself(home):
    """A forked child does not use its parent's credentials, because their locks may be held forever in the child."""
    _write(home, "credentials", "[default]\naws_access_key_id = old\naws_secret_access_key = b\n")
    source = CredentialSource()
    source.current()
    _write(home, "credentials", "[default]\naws_access_key_id = new\naws_secret_access_key = b\n")
    child = os.fork()
    if child == 0:
        os._exit(0 if source.current().access_key_id == "new" else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert source.current().access_key_id == "old"


def test_the_endpoint(home, monkeypatch):
    """An argument, then Larder's variable, then AWS's, then the profile's; else the error names them."""
    with pytest.raises(ValueError, match="LARDER_ENDPOINT or AWS_ENDPOINT_URL"):
        endpoint_of(None)
    _write(home, "config", "[default]\nendpoint_url = http://profile\n")
    assert endpoint_of(None) == "http://profile"
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://aws")
    assert endpoint_of(None) == "http://aws"
    monkeypatch.setenv("LARDER_ENDPOINT", "http://larder")
    assert endpoint_of(None) == "http://larder"
    assert endpoint_of("http://given") == "http://given"
