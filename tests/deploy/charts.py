"""The Helm chart, rendered by Helm's own engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import helm_python
import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy/helm/larder"
RELEASE, NAMESPACE = "larder", "training"
SECRETS = {
    "LARDER_FLEET__SECRET": "a secret of all nodes",
    "LARDER_REDIS__URL": "redis://:password@redis.example:6379/0",
}

Document = dict[str, Any]


@dataclass(frozen=True)
class Rendered:
    """The rendered documents and notes of a chart."""

    documents: tuple[Document, ...]
    notes: str

    def one(self, kind: str, name: str = RELEASE) -> Document:
        """The only document of a kind and name."""
        (found,) = (each for each in self.documents if each["kind"] == kind and each["metadata"]["name"] == name)
        return found

    def has(self, kind: str) -> bool:
        """True if there is a document of a kind."""
        return any(each["kind"] == kind for each in self.documents)

    @property
    def pod(self) -> Document:
        """The pod template of the StatefulSet."""
        template: Document = self.one("StatefulSet")["spec"]["template"]
        return template

    @property
    def gateway(self) -> Document:
        """The container that serves."""
        container: Document = self.pod["spec"]["containers"][0]
        return container


def render(values: Mapping[str, Any], release: str = RELEASE) -> Rendered:
    """Render the chart. Raises ``helm_python.HelmError`` if Helm or the chart's schema refuses the values."""
    with helm_python.Chart.load(str(CHART)) as chart:
        chart.validate_schema(dict(values))
        texts = chart.render(dict(values), name=release, namespace=NAMESPACE)
    notes = "".join(text for name, text in texts.items() if name.endswith("NOTES.txt"))
    documents = [
        each
        for name, text in texts.items()
        if not name.endswith("NOTES.txt")
        for each in yaml.load_all(text, yaml.CSafeLoader)
        if each is not None
    ]
    return Rendered(tuple(documents), notes)


def environment_of(container: Document, pod: str) -> dict[str, str]:
    """A container's environment in a pod of this name, without secrets; ``$(NAME)`` is expanded as by Kubernetes."""
    given: dict[str, str] = {}
    for each in container["env"]:
        if "valueFrom" in each:
            assert each["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.name"}}
            given[each["name"]] = pod
            continue
        value = each["value"]
        for name, known in list(given.items()):
            value = value.replace(f"$({name})", known)
        given[each["name"]] = value
    return given
