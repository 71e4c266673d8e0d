"""Commands for one object in place of a prefix."""

from __future__ import annotations


def test_a_command_for_one_object(admin, operator):
    """Rule: with --exact the request names a key. Without an object that is wrong usage, and nothing is sent."""
    admin.answers["POST purge"] = {"objects": 1, "bytes": 9, "complete": True, "nodes": []}
    admin.answers["POST warmups"] = lambda _: (202, {"id": "5f2c", "state": "queued", "bucket": "b", "key": "k/x"})
    operator("purge", "s3://b/k/x", "--exact", "--yes")
    assert admin.asked[-1].body == {"bucket": "b", "key": "k/x", "dry_run": False}
    assert operator("warm", "b/k/x", "--exact", "--as", "GWA", "--detach").out.startswith("b/k/x: queued")
    assert admin.asked[-1].body == {"bucket": "b", "key": "k/x", "access_key_id": "GWA"}
    sent = len(admin.asked)
    for words in (("purge", "b/", "--exact", "--yes"), ("warm", "b", "--exact", "--as", "GWA")):
        assert "--exact: name the object" in operator(*words, status=2).err
    assert "--exact: goes with BUCKET/KEY" in operator("warm", "--list", "--exact", status=2).err
    assert len(admin.asked) == sent
