"""A gateway before moto, and one before radosgw, for what outside S3 suites ask."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rig.gateways import Settings, gateway, s3_client
from tests.s3suite.forms import ALLOWED, BUCKET, PUBLIC, READ_ONLY, SESSION, TENANT, Target

_CREDENTIALS = (
    {"access_key_id": TENANT[0], "secret_access_key": TENANT[1], "tenant": "a"},
    {"access_key_id": READ_ONLY[0], "secret_access_key": READ_ONLY[1], "tenant": "a", "read_only": True},
    {"access_key_id": ALLOWED[0], "secret_access_key": ALLOWED[1], "tenant": "a", "allow": [f"{BUCKET}/mine/**"]},
    {"access_key_id": SESSION[0], "secret_access_key": SESSION[1], "session_token": SESSION[2], "tenant": "a"},
)


@pytest.fixture(scope="module", params=["moto", "radosgw"])
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """A gateway with its access log, before one origin."""
    origin = request.getfixturevalue(request.param)
    endpoint = origin if request.param == "moto" else origin.endpoint
    direct = s3_client(endpoint, "origin-key-a", "origin-secret-a")
    home: Path = tmp_path_factory.mktemp("forms")
    log = home / "access.log"
    settings = Settings(
        endpoint,
        home / "cache",
        credentials=_CREDENTIALS,
        server={"max_spool": "8MiB"},
        extra=f'[log]\naccess = "{log}"\n',
    )
    direct.create_bucket(Bucket=BUCKET)
    direct.create_bucket(Bucket=PUBLIC, ACL="public-read-write")
    with gateway(settings, home) as running:
        yield Target(running, direct, log, request.param)
