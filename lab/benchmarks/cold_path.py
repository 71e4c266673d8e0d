"""Cold GETs of 110 KiB: the gateway's CPU per request beside aiobotocore's get_object alone, at 64 in flight.

The gateway verifies, fetches, hashes, stores and sends each object; aiobotocore only signs and fetches it. Both read different
objects of the same origin, in turn, each object once.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from aiobotocore.config import AioConfig
from aiobotocore.session import get_session

from lab.benchmarks import cold_floor
from lab.benchmarks.load import raw_request
from lab.benchmarks.objects import make_many
from lab.benchmarks.report import Ratio, machine, write
from lab.benchmarks.servers import ACCESS_KEY, BUCKET, SECRET_KEY, Running, gateway, origin

IN_FLIGHT = 64
OBJECTS = 400
REPEATS = 5
LENGTH = 110 * 1024
BUDGET = 0.4


async def _get_all(port: int, keys: list[str]) -> None:
    """Read the keys over ``IN_FLIGHT`` connections; every answer must be a whole 200."""
    waiting = iter([raw_request(port, key) for key in keys])

    async def one_connection() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for request in waiting:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(head.decode() + (await reader.read(2000)).decode(errors="replace"))
            await reader.readexactly(LENGTH)
        writer.close()

    await asyncio.gather(*(one_connection() for _ in range(IN_FLIGHT)))


async def get_objects(port: int, keys: list[str]) -> dict[str, float]:
    """Cost of aiobotocore alone: CPU microseconds of this process per object, and objects per second."""
    config = AioConfig(max_pool_connections=IN_FLIGHT, s3={"addressing_style": "path"})
    async with get_session().create_client(
        "s3",
        region_name="us-east-1",
        endpoint_url=f"http://127.0.0.1:{port}",
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
        config=config,
    ) as client:

        async def read_from(waiting: list[str]) -> None:
            while waiting:
                answer = await client.get_object(Bucket=BUCKET, Key=waiting.pop())
                async with answer["Body"] as stream:
                    if len(await stream.read()) != LENGTH:
                        raise RuntimeError("a short object")

        warm = keys[:IN_FLIGHT]
        await asyncio.gather(*(read_from(warm) for _ in range(IN_FLIGHT)))
        waiting = keys[IN_FLIGHT:]
        count, cpu, clock = len(waiting), time.process_time(), time.perf_counter()
        await asyncio.gather(*(read_from(waiting) for _ in range(IN_FLIGHT)))
        cpu, clock = time.process_time() - cpu, time.perf_counter() - clock
    return {"cpu_us": cpu / count * 1e6, "requests_per_second": count / clock}


def _through_gateway(server: Running, keys: list[str]) -> dict[str, float]:
    before, clock = server.cpu_seconds(), time.perf_counter()
    asyncio.run(_get_all(server.port, keys))
    clock = time.perf_counter() - clock
    return {"cpu_us": (server.cpu_seconds() - before) / len(keys) * 1e6, "requests_per_second": len(keys) / clock}


def _alone(port: int, keys: list[str]) -> dict[str, float]:
    command = [sys.executable, "-m", "lab.benchmarks.cold_path", "--alone", str(port)]
    done = subprocess.run(command, input="\n".join(keys), capture_output=True, text=True, check=True)
    result: dict[str, float] = json.loads(done.stdout)
    return result


def _file_system(folder: Path) -> str:
    """The type of a folder's file system: ext4 without a journal makes new files expensive (decision 0030)."""
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    return max((place, kind) for place, kind in mounts if folder.resolve().is_relative_to(place))[1]


def run() -> float:
    """Measure and write the results; returns the ratio of CPU."""
    where = machine() | {"file system of the cache": _file_system(Path(tempfile.gettempdir()))}
    samples: dict[str, list[dict[str, float]]] = {"larder": [], "aiobotocore": []}
    with tempfile.TemporaryDirectory(prefix="larder-bench-") as temporary, ExitStack() as stack:
        directory, root = Path(temporary), Path(temporary) / "objects"
        cold = [make_many(root, f"cold{turn}", OBJECTS, LENGTH) for turn in range(REPEATS + 1)]
        source = stack.enter_context(origin(directory, root))
        server = stack.enter_context(gateway(directory, source.port))
        _through_gateway(server, cold.pop())
        for keys in cold:
            samples["larder"].append(_through_gateway(server, keys))
            samples["aiobotocore"].append(_alone(source.port, keys))
        data = (root / BUCKET / cold[0][0]).read_bytes()
        steps = cold_floor.measure(directory / "floor", source.port, cold[0][0], data)
    medians = {name: {field: median(s[field] for s in of) for field in of[0]} for name, of in samples.items()}
    ratio = Ratio.compared(
        "CPU of a cold GET of 110 KiB: Larder / aiobotocore's get_object alone",
        [each["cpu_us"] for each in samples["larder"]],
        [each["cpu_us"] for each in samples["aiobotocore"]],
        BUDGET,
    )
    figures = {"in_flight": IN_FLIGHT, "repeats": REPEATS, "objects": OBJECTS, "medians": medians, "floor": steps}
    write("cold_path", figures, where, [ratio])
    return ratio.value


if __name__ == "__main__":
    if sys.argv[1:2] == ["--alone"]:
        print(json.dumps(asyncio.run(get_objects(int(sys.argv[2]), sys.stdin.read().split()))))
    else:
        run()
