"""Mixed load on a gateway with every byte verified: a cluster's day in minutes.

Each kind of traffic is a coroutine that takes one step; `Traffic.run` takes steps of all kinds until its time is up. Keys,
tokens, jobs and datasets are new each time, so that any unbounded state per key, token, job or dataset grows visibly.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import random
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from aiohttp import ClientError, ClientSession, ClientTimeout
from yarl import URL

from lab.drill.soak_origin import bytes_of
from larder.reading.frames import Decoder
from rig.signed_requests import ClientSigner

BUCKET = "soak"
ADMIN_TOKEN = "the-token-of-the-soak"
ITEMS = 400
_WARM = 200
_LARGE = 20
_JOBS = 4
_DATASETS = 8
_SIZES = (900, 4_000, 16_000, 60_000)


class WrongBytes(Exception):
    """The gateway's answer has wrong bytes or an unexpected status."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Status and body of an answer."""

    status: int
    body: bytes


class Traffic:
    """The load of one run.

    Args:
        endpoint: of the gateway.
        signer: one of its keys.
        folder: for digest files.
        rate: the most steps per second.

    Attributes:
        steps: the number of steps of each kind.
    """

    def __init__(self, endpoint: str, signer: ClientSigner, folder: Path, rate: float) -> None:
        self.endpoint = endpoint
        self._signer = signer
        self._folder = folder
        self._pause = 1 / rate
        self._chance = random.Random(1)
        self._new = 0
        self._jobs: dict[str, str] = {}
        self._dataset = ""
        self._keys: list[str] = []
        self._names: deque[str] = deque()
        self.steps: Counter[str] = Counter()

    async def run(self, seconds: float, lanes: int = 8) -> None:
        """Load the gateway for some seconds.

        Raises:
            WrongBytes: an answer was wrong.
        """
        until = time.monotonic() + seconds
        async with ClientSession(timeout=ClientTimeout(60), auto_decompress=False) as self._session:
            await self._register()
            async with asyncio.TaskGroup() as group:
                for _ in range(lanes):
                    group.create_task(self._lane(until, self._pause * lanes))

    async def _lane(self, until: float, pause: float) -> None:
        kinds: Mapping[Callable[[], Awaitable[None]], int] = {
            self._cold: 30, self._warm: 30, self._ranged: 6, self._write: 8, self._batch: 10, self._heartbeat: 4,
            self._new_job: 1, self._register: 1, self._look: 3, self._refused: 8, self._abort: 4, self._missing: 3,
        }  # fmt: skip
        while time.monotonic() < until:
            step = self._chance.choices([*kinds], [*kinds.values()])[0]
            try:
                await step()
                self.steps[step.__name__.strip("_")] += 1
            except (TimeoutError, ClientError, OSError):
                self.steps["late"] += 1  # depends on the machine, unlike wrong bytes
            await asyncio.sleep(pause)

    def _number(self) -> int:
        self._new += 1
        return self._new

    # --- objects

    async def _cold(self) -> None:
        await self._verify(f"cold/{self._number()}.{self._chance.choice(_SIZES)}")

    async def _warm(self) -> None:
        number = self._chance.randrange(_WARM)
        await self._verify(f"warm/{number}.{_SIZES[number % len(_SIZES)]}")

    async def _ranged(self) -> None:
        key, size = f"large/{self._chance.randrange(_LARGE)}.1500000", 1_500_000
        start = self._chance.randrange(size - 1000)
        answer = await self._ask("GET", f"/{BUCKET}/{key}", headers={"Range": f"bytes={start}-{start + 999}"})
        _expect(answer, 206, bytes_of(key)[start : start + 1000], key)

    async def _write(self) -> None:
        number = self._number()
        path, body = f"/{BUCKET}/written/{number}.100", self._chance.randbytes(2_000)
        _expect(await self._ask("PUT", path, body), 200, b"", path)
        _expect(await self._ask("GET", path), 200, body, path)
        _expect(await self._ask("DELETE", path), 204, b"", path)
        _expect(await self._ask("GET", path), 200, bytes_of(f"written/{number}.100"), path)

    async def _missing(self) -> None:
        answer = await self._ask("GET", f"/{BUCKET}/missing/{self._number()}")
        _expect(answer, 404, None, "a missing object")

    async def _verify(self, key: str) -> None:
        _expect(await self._ask("GET", f"/{BUCKET}/{key}"), 200, bytes_of(key), key)

    # --- datasets and jobs

    async def _register(self) -> None:
        number = self._number()
        keys = [f"items/{number}/{index}.3000" for index in range(ITEMS)]
        file = io.BytesIO()
        digests = pa.array([hashlib.sha256(bytes_of(key)).digest() for key in keys], pa.binary(32))
        nothing = pa.nulls(len(keys), pa.int64())
        columns = {"digest": digests, "bucket": [BUCKET] * len(keys), "key": keys, "offset": nothing, "length": nothing}
        pq.write_table(pa.table(columns), file)
        name = f"/-/v1/datasets/soak-{number}"
        self._names.append(name)  # an answer that comes late does not undo it
        answer = await self._ask("PUT", f"{name}?caching=auto", file.getvalue())
        if answer.status == 503:
            return  # others are being read
        _expect(answer, 201, None, name)
        self._dataset, self._keys = json.loads(answer.body)["id"], keys
        while len(self._names) > _DATASETS:
            await self._unregister(self._names.popleft())

    async def _unregister(self, name: str) -> None:
        try:
            answer = await self._ask("DELETE", name)
        except (TimeoutError, ClientError, OSError):
            self._names.append(name)
            raise
        if answer.status != 404:  # it was not registered, as others were being read
            _expect(answer, 204, b"", name)

    async def _batch(self) -> None:
        keys, dataset = self._keys, self._dataset
        indices = np.array(self._chance.sample(range(ITEMS), 32), "<u4")
        job = f"?job={self._chance.choice([*self._jobs])}" if self._jobs and self._chance.random() < 0.5 else ""
        answer = await self._ask("POST", f"/-/v1/datasets/{dataset}/batch{job}", indices.tobytes())
        if answer.status == 404 or (job and answer.status == 409):
            return  # the dataset was removed, or the job is another dataset's
        _expect(answer, 200, None, "a batch")
        received = Decoder(indices).decode(io.BytesIO(answer.body))
        for position, data in zip(received.positions, received.data, strict=True):
            _expect(Answer(200, bytes(data)), 200, bytes_of(keys[indices[position]]), "an item")
        if len(received.positions) != len(indices):
            raise WrongBytes(f"a batch of {len(indices)} has {len(received.positions)} items: {received.failures}")

    async def _new_job(self) -> None:
        name = f"job-{self._number()}"
        request = {"job": name, "dataset": self._dataset, "gpus": 1, "batch_size": 32}
        answer = await self._ask("POST", "/-/v1/jobs", json.dumps(request).encode())
        if answer.status in (200, 201):
            self._jobs[name] = self._dataset
        if len(self._jobs) > _JOBS:
            gone = next(iter(self._jobs))
            del self._jobs[gone]
            if self._chance.random() < 0.5:  # the others fall silent
                await self._ask("DELETE", f"/-/v1/jobs/{gone}")

    async def _heartbeat(self) -> None:
        if not self._jobs:
            return
        job = self._chance.choice([*self._jobs])
        beat = {"rank": 0, "epoch": self._chance.randrange(9), "upcoming": [0, 1, 2], "epoch_left": 1}
        answer = await self._ask("POST", f"/-/v1/jobs/{job}/heartbeat", json.dumps(beat).encode())
        if answer.status == 404:
            self._jobs.pop(job, None)

    # --- other traffic

    async def _look(self) -> None:
        bearer = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
        path = self._chance.choice(["overview", "overview/history", "problems", "datasets", "jobs", "explain/misses"])
        for address in (f"/-/admin/{path}", "/-/metrics", "/-/readyz"):
            async with self._session.get(self.endpoint + address, headers=bearer) as response:
                await response.read()

    async def _refused(self) -> None:
        number = self._number()
        stranger = ClientSigner(f"STRANGER{number}", f"secret-{number}")
        forger = ClientSigner(self._signer.access_key_id, f"secret-{number}")
        for signer in (stranger, forger):
            answer = await self._ask("GET", f"/{BUCKET}/refused/{number}.100", signer=signer)
            _expect(answer, 403, None, "a wrong signature")

    async def _abort(self) -> None:
        path = f"/{BUCKET}/large/{self._chance.randrange(_LARGE)}.1500000"
        url = self.endpoint + path
        headers = {name.decode(): value.decode() for name, value in self._signer.header("GET", url).headers}
        reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(self.endpoint).port)
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        writer.write(f"GET {path} HTTP/1.1\r\n{lines}\r\n".encode())
        await reader.read(self._chance.choice([1, 1000, 200_000]))
        writer.transport.abort()

    async def _ask(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        headers: Mapping[str, str] | None = None,
        signer: ClientSigner | None = None,
    ) -> Answer:
        url = self.endpoint + path
        signed = (signer or self._signer).header(method, url, headers, body=body).headers
        names = {name.decode(): value.decode() for name, value in signed}
        async with self._session.request(
            method, URL(url, encoded=True), data=body or None, headers=names, skip_auto_headers=["Content-Type"]
        ) as response:
            return Answer(response.status, await response.read())


def _expect(answer: Answer, status: int, body: bytes | None, what: str) -> None:
    if answer.status != status:
        raise WrongBytes(f"{what}: {answer.status} instead of {status}: {answer.body[:500]!r}")
    if body is not None and answer.body != body:
        raise WrongBytes(f"{what}: {len(answer.body)} bytes that are not the object's {len(body)}")
