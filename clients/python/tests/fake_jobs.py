"""Jobs in memory, at the addresses where a gateway has them, for a fake gateway to serve."""

import json
import threading
from dataclasses import dataclass, field

from fake_gateway import Asked, Handler
from fake_importance import FakeImportance

import larder
from larder.testing import MemorySource

KEY = larder.Credentials("key", "secret")
PATIENT = larder.Retry(attempts=50, base=0.01, longest=0.01)

STEADY = {
    "caching": "part",
    "cache": True,
    "phase": "steady",
    "plan": 1,
    "heartbeat": 0.1,
}


@dataclass
class FakeJobs:
    """Serves ``/-/v1/jobs``, and any dataset: use it as ``FakeBatchGateway.other``.

    ``away``: the number of requests answered with 503;
    ``workers``: the number of input workers in the answer to a pipeline's report; ``cache`` and ``reason``: the mark to store,
    and the reason; ``deciding``: the number of profiles answered before a decision; ``gone``: break off all requests;
    ``ids``: ids of the existing datasets by name (empty: any exist).
    """

    directives: dict[str, object] = field(default_factory=lambda: dict(STEADY))
    known: dict[str, dict[str, object]] = field(default_factory=dict)
    beats: list[dict[str, object]] = field(default_factory=list)
    registrations: list[dict[str, object]] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    workers: int | None = None
    cache: int | None = None
    reason: str = "profiling"
    deciding: int = 0
    away: int = 0
    gone: bool = False
    ids: dict[str, str] = field(default_factory=dict)
    importance: FakeImportance = field(default_factory=FakeImportance)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def __call__(self, handler: Handler, asked: Asked) -> None:
        """Answer one request."""
        with self.changed:
            self._answer(handler, asked)
            self.changed.notify_all()

    def wait(self, what, seconds: float = 30.0) -> None:
        """Until something is so, which only a request can change."""
        with self.changed:
            assert self.changed.wait_for(what, seconds)

    def _answer(self, handler: Handler, asked: Asked) -> None:
        if self.gone:
            handler.close_connection = True
            return
        if self.away:
            self.away -= 1
            handler.send_problem(503, "ServiceUnavailable", "Redis is away")
            return
        _, _, version, what, *rest = asked.path.split("/")
        if what == "datasets":
            handler.send_json(
                {"name": rest[0], "id": "d" * 64, "items": 103, "bytes": 1, "caching": "part", "plan": 1, "resident": 0}
            )
            return
        assert (version, what) == ("v1", "jobs"), asked.path
        if asked.path.endswith("/importance"):
            self._answer_importance(handler, asked, rest[0])
            return
        document = json.loads(asked.body) if asked.body else {}
        if not rest and self.ids and document["dataset"] not in self.ids:
            handler.send_problem(404, "UnknownDataset", f"there is no dataset {document['dataset']!r}")
        elif not rest:
            new = document["job"] not in self.known
            self.known[document["job"]] = document
            self.registrations.append(document)
            dataset = self.ids.get(document["dataset"], document["dataset"])
            answer = {"job": document["job"], "dataset": dataset, "directives": self.directives}
            handler.send_json(answer, 201 if new else 200)
        elif rest[0] not in self.known:
            handler.send_problem(404, "UnknownJob", "register it again")
        elif asked.method == "DELETE":
            self.removed.append(rest[0])
            del self.known[rest[0]]
            handler.send(204)
        else:
            self.beats.append(document)
            told = None
            if "pipeline" in document or "profile" in document:
                workers = self.workers if "pipeline" in document else None
                told = {"workers": workers, "cache": self.cache, "reason": self.reason}
                if self.deciding and "profile" in document:
                    self.deciding -= 1
                    told = {"workers": None, "cache": None, "reason": ""}
            handler.send_json({"directives": self.directives, "pipeline": told})

    def _answer_importance(self, handler: Handler, asked: Asked, job: str) -> None:
        if job in self.known:
            self.importance(handler, asked)
        else:
            handler.send_problem(404, "UnknownJob", "register it again")


def job_at(jobs, name="run", **options):
    """A job there."""
    options = {"batch_size": 16, "credentials": KEY, "retry": PATIENT, **options}
    return larder.Job(jobs.endpoint, name, "train", **options)


def loader_of(job, items=103, **options):
    """A loader of items in memory, with a job."""
    source = options.pop("source", None) or MemorySource(items, caching="part")
    return larder.Loader("memory:", "train", batch_size=16, source=source, job=job, **options)
