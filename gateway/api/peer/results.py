"""Results of pipelines whose home is this node, for a node that received a client's request.

The asking node has verified the client and its rights, and handles claims.
"""

from __future__ import annotations

import re
from urllib.parse import parse_qsl

from gateway.api.peer.app import Address, OnBehalfOf, PeerRequest
from gateway.api.v1.results import entries_of, numbers_of, send_results, versions_of
from gateway.edge.asgi import send_json
from gateway.engine.items.registrations import Registrations
from gateway.engine.items.results import ResultRequest, Results
from gateway.model.datasets import ApiError, UnknownDataset
from gateway.model.results import LONGEST_BODY, MOST_BYTES

_PATH = re.compile(r"datasets/([0-9a-f]{64})/results/([0-9a-f]{64})")


def peer_results(registrations: Registrations, results: Results) -> Address:
    """The endpoint ``/-/peer/v1/datasets/{id}/results/{fingerprint}``.

    ``POST ...?name=N&versions=K&room=BYTES`` reads, ``PUT ...?name=N&versions=K&replace=1`` stores; bodies and answers are those
    of ``/-/v1``.

    Args:
        registrations: of the node.
        results: as this worker reaches them.
    """

    async def answer(request: PeerRequest) -> None:
        dataset, fingerprint = request.names
        query = dict(parse_qsl(request.scope["query_string"].decode("latin-1"), keep_blank_values=True))
        registration = await registrations.find(request.principal.tenant, query.get("name", ""))
        if registration is None or registration.content.id != dataset:
            raise UnknownDataset(dataset)
        room = query.get("room", str(MOST_BYTES))
        if not room.isdecimal():
            raise ApiError("InvalidRequest", f"room must be a number of bytes, not {room[:40]!r}")
        asked = ResultRequest(
            registration,
            fingerprint,
            forwarded=True,
            room=int(room),
            replace=query.get("replace") == "1",
            versions=versions_of(query, registration),
        )
        if request.scope["method"] == "PUT":
            entries = entries_of(request.body, asked)
            await send_json(request.send, 200, {"results": await results.put(asked, entries)})
            return
        numbers = numbers_of(request.body, asked)
        await send_results(request.scope, request.send, await results.get(asked, numbers), numbers.tolist())

    return Address(_PATH, ("POST", "PUT"), answer, LONGEST_BODY, on_behalf_of=OnBehalfOf.TENANT)
