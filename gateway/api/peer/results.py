"""Results of pipelines that are at home here, for a node that a client asked for them.

The asking node has verified the client and its rights; claims are its affair.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import parse_qsl

from gateway.api.peer.app import Address, OnBehalfOf, PeerRequest
from gateway.api.v1.batch import parse_indices
from gateway.api.v1.results import entries_of, send_results
from gateway.edge.asgi import send_json
from gateway.engine.items.registrations import Registrations
from gateway.engine.items.results import ResultRequest, Results
from gateway.model.datasets import ApiError, UnknownDataset
from gateway.model.results import LONGEST_BODY, MOST_BYTES

_PATH = re.compile(r"datasets/([0-9a-f]{64})/results/([0-9a-f]{64})")


class PeerResults:
    """Answers ``/-/peer/v1/datasets/{id}/results/{fingerprint}``.

    Args:
        registrations: of the node.
        results: as this worker reaches them.
    """

    def __init__(self, registrations: Registrations, results: Results) -> None:
        self._registrations = registrations
        self._results = results

    @property
    def addresses(self) -> Mapping[str, Address]:
        """Addresses by the kind they are counted as."""
        return {"results": Address(_PATH, ("POST", "PUT"), self.results, LONGEST_BODY, on_behalf_of=OnBehalfOf.TENANT)}

    async def results(self, request: PeerRequest) -> None:
        """``POST ...?name=N&room=BYTES`` reads, ``PUT ...?name=N&replace=1`` stores; bodies and answers as under ``/-/v1``.

        Raises:
            ApiError: the request is refused.
            BrokenBody: the answer that has begun cannot be completed.
        """
        found = _PATH.fullmatch(request.scope["raw_path"].decode("ascii").partition("/peer/v1/")[2])
        assert found is not None
        query = dict(parse_qsl(request.scope["query_string"].decode("latin-1"), keep_blank_values=True))
        registration = await self._registrations.find(request.principal.tenant, query.get("name", ""))
        if registration is None or registration.content.id != found[1]:
            raise UnknownDataset(found[1])
        room = query.get("room", str(MOST_BYTES))
        if not room.isdecimal():
            raise ApiError("InvalidRequest", f"room must be a number of bytes, not {room[:40]!r}")
        replace = query.get("replace") == "1"
        asked = ResultRequest(registration, found[2], forwarded=True, room=int(room), replace=replace)
        if request.scope["method"] == "PUT":
            entries = entries_of(request.body, registration.content.items)
            await send_json(request.send, 200, {"results": await self._results.put(asked, entries)})
            return
        indices = parse_indices(request.body, registration.content.items, distinct=True)
        await send_results(request.scope, request.send, await self._results.get(asked, indices), indices.tolist())
