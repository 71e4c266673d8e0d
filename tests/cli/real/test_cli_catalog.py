"""Tenants, keys, origins, rules and the catalog's tables, as an operator types them at a real gateway."""

from __future__ import annotations

import json
import subprocess

import pytest

from gateway.admin.configuration.rules import RuleDocument
from rig.processes import wait_until
from tests.cli.commands import run_here
from tests.cli.real.reads import READER, SOON, served


def test_a_key_from_its_creation_to_its_revocation(operator, running):
    """Rule: a key that is created works with the lines that were printed, read by a shell; revoked, it works no more."""
    operator("tenants", "create", "vision", "--description", "the vision group's $HOME")
    made = operator("credentials", "create", "--tenant", "vision", "--allow", "photos/**", "--read-only")
    script = f'{made.out}\nprintf "%s\\n%s" "$AWS_ACCESS_KEY_ID" "$AWS_SECRET_ACCESS_KEY"'
    key, secret = subprocess.check_output(["/bin/sh", "-c", script], text=True).split("\n")
    wait_until(lambda: served(running, key, secret).startswith(("HIT", "MISS")), SOON, "the new key")
    operator("credentials", "revoke", key)
    wait_until(lambda: served(running, key, secret) == "InvalidAccessKeyId", SOON, "the revocation")
    listed = operator("credentials", "list", "--tenant", "vision")
    assert "revoked" in listed.out
    (entry,) = operator("credentials", "--tenant", "vision", "--json").json["items"]
    assert (entry["access_key_id"], entry["revoked"], entry["read_only"]) == (key, True, True)
    log = operator("audit", "--target", key)
    assert "credentials.create" in log.out
    assert "credentials.revoke" in log.out
    assert secret not in listed.out + log.out + json.dumps(entry)


def test_what_a_key_may_do_is_changed(operator, running):
    """Rule: what is given is changed, all else stays; an empty glob allows everything; without an option nothing is sent."""
    made = operator(
        "credentials", "create", "--access-key", "CHANGED", "--allow", "other/**", "--read-only", "--json"
    ).json
    wait_until(lambda: served(running, "CHANGED", made["secret_access_key"]) == "AccessDenied", SOON, "the new key")
    assert "CHANGED is changed" in operator("credentials", "change", "CHANGED", "--allow", "").out
    wait_until(lambda: served(running, "CHANGED", made["secret_access_key"]).startswith("HIT"), SOON, "the change")
    known = {key["access_key_id"]: key for key in operator("credentials", "--json").json["items"]}
    assert (known["CHANGED"]["allow"], known["CHANGED"]["read_only"]) == ([], True)
    after = operator("credentials", "change", "CHANGED", "--no-read-only", "--description", "nightly", "--json").json
    assert (after["read_only"], after["description"]) == (False, "nightly")
    assert "nothing to change: give an option" in operator("credentials", "change", "CHANGED", status=2).err
    operator("credentials", "remove", "CHANGED")


def test_a_rotation_with_grace(operator, running):
    """Rule: after a rotation both secrets work for the grace; --json has the new one, once."""
    made = operator("credentials", "create", "--access-key", "ROTATED", "--json").json
    wait_until(lambda: served(running, "ROTATED", made["secret_access_key"]).startswith("HIT"), SOON, "the new key")
    new = operator("credentials", "rotate", "ROTATED", "--grace", "1h", "--json").json
    assert new["secret_access_key"] != made["secret_access_key"]
    wait_until(lambda: served(running, "ROTATED", new["secret_access_key"]).startswith("HIT"), SOON, "the new secret")
    assert served(running, "ROTATED", made["secret_access_key"]).startswith("HIT")
    operator("credentials", "remove", "ROTATED")


def test_a_tenant_that_is_disabled(operator, running):
    """Rule: a disabled tenant's keys are refused until it is enabled; a tenant with keys cannot be removed."""
    operator("tenants", "create", "sound")
    secret = operator("credentials", "create", "--tenant", "sound", "--access-key", "SOUND", "--json").json[
        "secret_access_key"
    ]
    wait_until(lambda: served(running, "SOUND", secret).startswith(("HIT", "MISS")), SOON, "the new key")
    operator("tenants", "disable", "sound")
    wait_until(lambda: served(running, "SOUND", secret) == "InvalidAccessKeyId", SOON, "the refusal")
    operator("tenants", "enable", "sound")
    wait_until(lambda: served(running, "SOUND", secret).startswith("HIT"), SOON, "the service")
    assert "Conflict" in operator("tenants", "remove", "sound", status=1).err
    operator("credentials", "remove", "SOUND")
    operator("tenants", "remove", "sound")
    assert "sound" not in operator("tenants", "list").out


def test_the_token_that_may_only_look(operator):
    """Rule: admin.read_token shows, and is refused every change with the reason."""
    assert operator("credentials", "list", LARDER_ADMIN_TOKEN=READER).status == 0
    refused = operator("tenants", "create", "x", status=1, LARDER_ADMIN_TOKEN=READER)
    assert "ReadOnlyToken" in refused.err


def test_a_named_token_from_its_creation_to_its_revocation(operator):
    """Rule: the printed token has the requested role, the audit log has its name, and once revoked it is refused."""
    made = operator("tokens", "create", "deployer", "--role", "operator").out
    token = made.strip().removeprefix("LARDER_ADMIN_TOKEN=")
    assert "RoleRequired" in operator("tenants", "create", "x", status=1, LARDER_ADMIN_TOKEN=token).err
    operator("tokens", "change", "deployer", "--role", "admin")
    operator("tenants", "create", "by-name", LARDER_ADMIN_TOKEN=token)
    assert "deployer" in operator("audit", "--target", "by-name").out
    listed = operator("tokens", "list").out
    assert "deployer" in listed
    assert token not in listed
    assert "give --role" in operator("tokens", "change", "deployer", status=2).err
    operator("tokens", "revoke", "deployer")
    assert "Unknown token" in operator("status", status=2, LARDER_ADMIN_TOKEN=token).err
    operator("tenants", "remove", "by-name")


def test_names_that_are_none(operator):
    """Rule: an invalid name is refused, naming the field, and nothing is created."""
    refused = operator("tenants", "create", "<script>", status=1)
    assert "The field name " in refused.err
    assert "script" not in operator("tenants", "list").out


def test_an_origin(operator, tmp_path):
    """Rule: an origin's secret comes from a file, and is shown nowhere; its address can be changed, and nothing else changes."""
    secret = tmp_path / "secret"
    secret.write_text("the-secret-of-the-store\n")
    operator(
        "origins",
        "create",
        "archive",
        "--address",
        "http://127.0.0.1:9",
        "--access-key",
        "STORE",
        "--secret-file",
        str(secret),
    )
    listed = operator("origins")
    assert "archive" in listed.out
    assert (
        "the-secret-of-the-store"
        not in listed.out + operator("origins", "--json").out + operator("audit", "--json").out
    )
    assert "archive is changed" in operator("origins", "change", "archive", "--address", "http://127.0.0.1:10").out
    known = {origin["name"]: origin for origin in operator("origins", "--json").json["items"]}
    assert (known["archive"]["endpoint"], known["archive"]["access_key_id"]) == ("http://127.0.0.1:10", "STORE")
    operator("origins", "remove", "archive")


def test_rules(operator, tmp_path):
    """Rule: rules are replaced from a file; check says which one holds, and ends with 1 when one can never hold."""
    file = tmp_path / "rules.toml"
    file.write_text('[[rules]]\nmatch = "photos/**"\nfreshness = "10m"\n[[rules]]\nmatch = "photos/train/**"\n')
    checked = operator("rules", "check", "--file", str(file), "--json", status=1).json["items"]
    assert [rule["verdict"] for rule in checked][:2] == ["matches", "hidden"]
    assert [rule["source"] for rule in operator("rules", "list", "--json").json["items"]] == ["file"]
    operator("rules", "replace", str(file))
    assert operator("rules", "check", "s3://photos/train/01.jpg").out == "rule 0 applies: photos/** (catalog)\n"
    file.write_text("")
    operator("rules", "replace", str(file))
    assert operator("rules", "check", "photos/train/01.jpg").out == "rule 0 applies: photos/** (file)\n"
    assert "no rule applies" in operator("rules", "check", "elsewhere/x").out


def test_rules_are_listed_with_all_they_say(operator):
    """Rule: the table has a column for each field of a rule."""
    header = operator("rules", "list").out.splitlines()[0].split()
    assert sorted(name.lower() for name in header) == sorted(RuleDocument.model_fields)


@pytest.mark.parametrize("content", ["[[rules]\n", '[cache]\ndir = "x"\n', "rules = 3\n"])
def test_a_file_of_no_rules(operator, tmp_path, content):
    """Rule: a file with anything but rules is wrong usage, and no request is sent."""
    file = tmp_path / "rules.toml"
    file.write_text(content)
    assert str(file) in operator("rules", "replace", str(file), status=2).err


def test_migrate(tmp_path):
    """Rule: migrate creates missing tables and reports it; a second run has nothing to do."""
    config = tmp_path / "larder.toml"
    config.write_text(f'[cache]\ndir = "{tmp_path}/cache"\n[[origins]]\nendpoint = "http://127.0.0.1:5000"\n')
    first = run_here("migrate", "--config", str(config), "--json")
    assert first.status == 0, first
    assert first.json["before"] is None
    assert "up to date" in run_here("migrate", "--config", str(config)).out
    assert (tmp_path / "cache" / "catalog.db").stat().st_mode & 0o077 == 0


def test_migrate_of_a_database_that_is_not_there(tmp_path):
    """Rule: a database that cannot be reached is a problem without a traceback or the password."""
    config = tmp_path / "larder.toml"
    config.write_text(
        '[database]\nurl = "postgresql+asyncpg://larder:hush@127.0.0.1:9/larder"\n'
        'encryption_key = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="\n[[origins]]\nendpoint = "http://127.0.0.1:5000"\n'
    )
    ran = run_here("migrate", "--config", str(config))
    assert ran.status == 1
    assert "Traceback" not in ran.err
    assert "hush" not in ran.err
    shown = run_here("check-config", str(config))
    assert "hush" not in shown.out
    assert "AAAA" not in shown.out
