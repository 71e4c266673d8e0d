"""The clients that `make test` tries, each with its operations, as parameters of tests."""

import pytest

from tests.s3compat.clients.base import Client
from tests.s3compat.clients.botocore_based import Aiobotocore, Boto3, Boto3Crt, S3fs
from tests.s3compat.clients.native import Obstore, Pyarrow
from tests.s3compat.operations import OPERATIONS

CLIENTS: tuple[type[Client], ...] = (Boto3, Boto3Crt, Aiobotocore, S3fs, Obstore, Pyarrow)
CAN = [
    pytest.param(client, operation, id=f"{client.name}-{operation.name}".replace(" ", "_"))
    for client in CLIENTS
    for operation in OPERATIONS
    if client.can(operation.needs)
]

# A client that retries a refusal for many seconds learns no more from it than the others.
QUICK = [pair for pair in CAN if pair.values[1].reads or not pair.values[0].retries]
COLD = [pair for pair in CAN if pair.values[1].reads and not pair.values[0].retries]
