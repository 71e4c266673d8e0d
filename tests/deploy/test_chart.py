"""The Helm chart: rendered by Helm, checked with Kubernetes' schemas and with the gateway's own configuration parser."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import helm_python
import kubernetes_validate
import pytest
import yaml

from gateway import __version__
from gateway.base.config import load_settings
from tests.deploy.charts import CHART, NAMESPACE, ROOT, SECRETS, Rendered, environment_of, render
from tests.docs.blocks import blocks

PAGE = ROOT / "docs/deploy.md"
KUBERNETES = ("1.27", "1.32")
ROLE = {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/larder"}
OF_A_SECRET = {"name": "LARDER_ADMIN__TOKEN", "valueFrom": {"secretKeyRef": {"name": "mine", "key": "admin"}}}
CLIENTS = [{"namespaceSelector": {"matchLabels": {"team": "vision"}}}]
EGRESS = [{"to": [{"ipBlock": {"cidr": "0.0.0.0/0"}}]}]


def of_the_page() -> dict[str, Any]:
    """The values of docs/deploy.md."""
    (text,) = (block.text for block in blocks(PAGE) if block.said("file") == "my-values.yaml")
    values: dict[str, Any] = yaml.safe_load(text)
    return values


OPEN = SECRETS | {"LARDER_ADMIN__TOKEN": "a long random token"}
DATABASE = {"LARDER_DATABASE__URL": "postgresql+asyncpg://larder@postgres.example/larder"}
EMPTY_DIR = {"storage": {"kind": "emptyDir"}}
IN_FILE = (
    '[[origins]]\nendpoint = "http://origin"\n[database]\nurl = "postgresql+asyncpg://larder@postgres.example/larder"\n'
)
VALUES: dict[str, Mapping[str, Any]] = {
    "defaults": {"secrets": SECRETS},
    "of docs/deploy.md": of_the_page(),
    "one node": {"replicas": 1},
    "a directory of each machine": {"secrets": SECRETS, "cache": {"storage": {"kind": "hostPath"}}},
    "gone with the pod": {"secrets": SECRETS, "cache": {"storage": {"kind": "emptyDir"}}},
    "TLS": {"secrets": SECRETS, "tls": {"secretName": "larder-tls"}, "serviceMonitor": {"enabled": True}},
    "a socket for the machine's pods": {"secrets": SECRETS, "server": {"socketHostPath": "/run/larder"}},
    "migrations": {"secrets": SECRETS, "migrate": True},
    "policies": {"secrets": SECRETS, "networkPolicy": {"clients": CLIENTS, "egress": EGRESS}},
    "no policy": {"secrets": SECRETS, "networkPolicy": {"enabled": False}},
    "where pods go": {
        "secrets": SECRETS,
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "affinity": {"podAntiAffinity": {}},
        "priorityClassName": "high",
        "podAnnotations": {"team": "storage"},
        "imagePullSecrets": [{"name": "registry"}],
        "service": {"type": "LoadBalancer", "annotations": {"internal": "true"}},
    },
    "what a platform adds": {
        "secrets": SECRETS,
        "image": {"digest": f"sha256:{'0' * 64}"},
        "labels": {"team": "storage"},
        "podLabels": {"cost-centre": "7"},
        "serviceAccount": {"annotations": ROLE},
        "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
        "extraVolumes": [{"name": "authority", "configMap": {"name": "authority"}}],
        "extraVolumeMounts": [{"name": "authority", "mountPath": "/etc/authority", "readOnly": True}],
        "ingress": {
            "enabled": True,
            "className": "nginx",
            "annotations": {"nginx.ingress.kubernetes.io/proxy-body-size": "0"},
            "hosts": ["s3.example", "*.s3.example"],
            "tlsSecretName": "s3-example",
        },
    },
    "monitoring": {
        "secrets": SECRETS,
        "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
    },
}


@pytest.fixture(params=VALUES, scope="module")
def rendered(request: pytest.FixtureRequest) -> Rendered:
    """The chart with each of these values."""
    return render(VALUES[request.param])


def test_helm_has_nothing_to_say() -> None:
    """Rule: ``helm lint`` finds neither errors nor warnings."""
    found = helm_python.lint(str(CHART))
    assert [each for each in found["messages"] if each["severity"] in ("warning", "error")] == []


def test_kubernetes_would_take_it(rendered: Rendered) -> None:
    """Rule: every document is valid for the oldest supported and for a new Kubernetes, without unknown fields."""
    ours = [each for each in rendered.documents if "monitoring.coreos.com" not in each["apiVersion"]]
    assert len(ours) >= 6
    for document in ours:
        for version in KUBERNETES:
            kubernetes_validate.validate(document, version, strict=True)


def test_the_parts_name_one_another(rendered: Rendered) -> None:
    """Rule: selectors match the pods, mounts have volumes, and references exist in the chart or are the user's."""
    spec, pod = rendered.one("StatefulSet")["spec"], rendered.pod
    labels, inner = pod["metadata"]["labels"], pod["spec"]
    names = {(each["kind"], each["metadata"]["name"]) for each in rendered.documents}
    selectors = [
        spec["selector"]["matchLabels"],
        rendered.one("PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
    ]
    selectors += [each["spec"]["selector"] for each in rendered.documents if each["kind"] == "Service"]
    selectors += [each["labelSelector"]["matchLabels"] for each in inner["topologySpreadConstraints"]]
    assert all(selector and selector.items() <= labels.items() for selector in selectors)
    assert ("Service", spec["serviceName"]) in names
    assert rendered.one("Service", spec["serviceName"])["spec"]["clusterIP"] == "None"
    assert ("ServiceAccount", inner["serviceAccountName"]) in names
    volumes = {each["name"]: each for each in inner["volumes"]}
    volumes |= {each["metadata"]["name"]: each for each in spec.get("volumeClaimTemplates", [])}
    for container in [*inner["containers"], *inner.get("initContainers", [])]:
        assert {each["name"] for each in container["volumeMounts"]} == volumes.keys()
    assert ("ConfigMap", volumes["config"]["configMap"]["name"]) in names


def test_each_node_accepts_its_configuration(rendered: Rendered, tmp_path: Path) -> None:
    """Rule: file and environment of a pod make a node that is called as the pod, reached by its name, and kept on its volume."""
    file = tmp_path / "larder.toml"
    file.write_text(rendered.one("ConfigMap")["data"]["larder.toml"])
    given = environment_of(rendered.gateway, "larder-1") | secret_environment(rendered)
    del given["POD_NAME"]
    settings = load_settings(file, given)
    scheme = "https" if settings.server.tls_cert else "http"
    assert settings.fleet.node == "larder-1"
    assert settings.fleet.advertise == f"{scheme}://larder-1.larder-nodes.{NAMESPACE}.svc.cluster.local:9000"
    assert settings.in_fleet == (rendered.one("StatefulSet")["spec"]["replicas"] > 1)
    (mounted,) = (each["mountPath"] for each in rendered.gateway["volumeMounts"] if each["name"] == "cache")
    assert settings.cache.dir.startswith(f"{mounted}/")
    pages = int(settings.admin.address.removeprefix("0.0.0.0:"))
    assert rendered.gateway["ports"] == [
        {"name": "s3", "containerPort": settings.server.port}, {"name": "operators", "containerPort": pages},
    ]  # fmt: skip
    grace = rendered.pod["spec"]["terminationGracePeriodSeconds"]
    assert grace >= settings.server.drain_notice + settings.server.drain + 10
    if settings.server.unix_socket:
        (folder,) = (each["mountPath"] for each in rendered.gateway["volumeMounts"] if each["name"] == "socket")
        assert settings.server.unix_socket == f"{folder}/larder-1.sock"
    probe = rendered.gateway["readinessProbe"]
    assert settings.server.drain_notice > probe["periodSeconds"] * probe["failureThreshold"]


def secret_environment(rendered: Rendered) -> dict[str, str]:
    """A container's variables from its Secret: the chart's, or the one that docs/deploy.md creates."""
    if "envFrom" not in rendered.gateway:
        return {}
    if rendered.has("Secret"):
        return SECRETS
    (text,) = (block.text for block in blocks(PAGE) if "kubectl create secret" in block.text)
    given = dict(re.findall(r"--from-literal=(\w+)=\"([^\"]*)\"", text))
    made = {"$(openssl rand -base64 32 | tr +/ -_)": f"{'A' * 43}="}
    drawn = {name: f"{number:064x}" for number, name in enumerate(given)}
    given = {
        name: drawn[name] if value == "$(openssl rand -hex 32)" else made.get(value, value)
        for name, value in given.items()
    }
    assert "LARDER_FLEET__SECRET" in given
    return given


def test_nothing_may_do_more_than_it_must(rendered: Rendered) -> None:
    """Rule: no root, no capability, no writable root file system, no token of Kubernetes, in every container."""
    inner = rendered.pod["spec"]
    assert inner["automountServiceAccountToken"] is False
    assert inner["securityContext"]["runAsNonRoot"] is True
    assert inner["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert f"--uid {inner['securityContext']['runAsUser']} " in (ROOT / "deploy/docker/Dockerfile").read_text()
    for container in [*inner["containers"], *inner.get("initContainers", [])]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["requests"]
        assert container["resources"]["limits"]


def test_probes_ask_what_they_are_for(rendered: Rendered) -> None:
    """Rule: being alive is /-/healthz, taking requests is /-/readyz, for operators only; a start may take ten minutes."""
    container = rendered.gateway
    scheme = "HTTPS" if any(each["name"] == "tls" for each in container["volumeMounts"]) else "HTTP"
    asked = {
        "startupProbe": ("healthz", "s3"),
        "livenessProbe": ("healthz", "s3"),
        "readinessProbe": ("readyz", "operators"),
    }
    for name, (path, port) in asked.items():
        assert container[name]["httpGet"] == {"path": f"/-/{path}", "port": port, "scheme": scheme}
    assert container["startupProbe"]["periodSeconds"] * container["startupProbe"]["failureThreshold"] >= 600


def test_clients_reach_nothing_of_operators() -> None:
    """Rule: clients' service and NetworkPolicy have the port for clients only, which serves nothing of operators."""
    operators = [{"podSelector": {"matchLabels": {"app": "prometheus"}}}]
    rendered = render({"secrets": SECRETS, "networkPolicy": {"clients": CLIENTS, "operators": operators}})
    assert environment_of(rendered.gateway, "larder-1")["LARDER_ADMIN__EXCLUSIVE"] == "true"
    assert [each["name"] for each in rendered.one("Service")["spec"]["ports"]] == ["s3"]
    to_clients, to_operators = rendered.one("NetworkPolicy")["spec"]["ingress"]
    assert (to_clients["ports"], to_clients["from"][1:]) == ([{"protocol": "TCP", "port": "s3"}], CLIENTS)
    assert (to_operators["ports"], to_operators["from"]) == ([{"protocol": "TCP", "port": "operators"}], operators)
    nobody = render({"secrets": SECRETS}).one("NetworkPolicy")["spec"]["ingress"]
    assert [each["ports"][0]["port"] for each in nobody] == ["s3"]


def test_secrets_are_nowhere_but_in_the_secret() -> None:
    """Rule: a value of ``secrets`` is encoded in the Secret, and in no other document nor in the notes."""
    rendered = render({"secrets": SECRETS | {"LARDER_ADMIN__TOKEN": "telltale"}, "catalog": "perNode"})
    assert "telltale" not in str(rendered.documents) + rendered.notes
    assert rendered.gateway["envFrom"] == [{"secretRef": {"name": "larder"}}]
    assert rendered.one("Secret")["data"]["LARDER_ADMIN__TOKEN"] == "dGVsbHRhbGU="


def test_a_changed_secret_restarts_and_a_changed_file_does_not() -> None:
    """Rule: a changed secret restarts the pods, because it is environment; a changed file is reloaded without a restart."""
    before = render({"secrets": SECRETS}).pod
    assert render({"secrets": SECRETS | {"LARDER_LOG__LEVEL": "debug"}}).pod != before
    assert render({"secrets": SECRETS, "config": '[[origins]]\nendpoint = "http://other"\n'}).pod == before


def test_two_releases_do_not_meet() -> None:
    """Rule: names and selectors have the release's name; a name with "larder" in it is not extended."""
    documents = render({"secrets": SECRETS}, release="second").documents
    assert {each["metadata"]["name"] for each in documents} == {"second-larder", "second-larder-nodes"}
    selector = render({"secrets": SECRETS}, release="second").one("StatefulSet", "second-larder")["spec"]["selector"]
    assert selector["matchLabels"]["app.kubernetes.io/instance"] == "second"


def test_an_account_has_the_role_of_the_cloud() -> None:
    """Rule: the service account has the user's annotations; an existing one is named and not created."""
    made = render({"secrets": SECRETS, "serviceAccount": {"annotations": ROLE}})
    assert made.one("ServiceAccount")["metadata"]["annotations"] == ROLE
    named = render({"secrets": SECRETS, "serviceAccount": {"create": False, "name": "store-reader"}})
    assert named.pod["spec"]["serviceAccountName"] == "store-reader"
    assert not named.has("ServiceAccount")


def test_what_a_platform_adds_is_there() -> None:
    """Rule: variables, volumes and labels of the user stand beside the chart's own, in every container."""
    values = VALUES["what a platform adds"]
    rendered = render(values | {"migrate": True})
    inner = rendered.pod["spec"]
    for container in [*inner["containers"], *inner["initContainers"]]:
        assert container["env"][-1] == values["extraEnv"][0]
        assert container["volumeMounts"][-1] == values["extraVolumeMounts"][0]
        assert container["image"] == f"larder-gateway@{values['image']['digest']}"
    assert values["extraVolumes"][0] in inner["volumes"]
    assert all(each["metadata"]["labels"]["team"] == "storage" for each in rendered.documents)
    assert rendered.pod["metadata"]["labels"].items() >= {"team": "storage", "cost-centre": "7"}.items()


def test_an_ingress_leads_to_the_service() -> None:
    """Rule: the Ingress routes every path of every host to the clients' service; by default there is none."""
    values = VALUES["what a platform adds"]["ingress"]
    ingress = render(VALUES["what a platform adds"]).one("Ingress")
    assert ingress["metadata"]["annotations"] == values["annotations"]
    assert ingress["spec"]["ingressClassName"] == "nginx"
    assert ingress["spec"]["tls"] == [{"secretName": "s3-example", "hosts": values["hosts"]}]
    assert [rule["host"] for rule in ingress["spec"]["rules"]] == values["hosts"]
    for rule in ingress["spec"]["rules"]:
        [path] = rule["http"]["paths"]
        assert (path["path"], path["pathType"]) == ("/", "Prefix")
        assert path["backend"] == {"service": {"name": "larder", "port": {"name": "s3"}}}
    assert not render({"secrets": SECRETS}).has("Ingress")


def test_memory_between_workers_has_room() -> None:
    """Rule: /dev/shm is an in-memory volume of the requested size; the container runtime's own has only 64 MiB."""
    rendered = render({"secrets": SECRETS, "sharedMemory": "1Gi"})
    assert {"name": "shared-memory", "mountPath": "/dev/shm"} in rendered.gateway["volumeMounts"]
    assert {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}} in rendered.pod["spec"][
        "volumes"
    ]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"secrets": SECRETS, "extraEnv": [{"name": "LARDER_SERVER__PORT", "value": "1"}]}, "LARDER_SERVER__PORT"),
        ({"secrets": SECRETS, "extraEnv": [OF_A_SECRET]}, "LARDER_DATABASE__URL"),
        ({"secrets": SECRETS, "serviceAccount": {"create": False}}, r"serviceAccount\.name"),
        ({"secrets": SECRETS, "ingress": {"enabled": True}}, r"ingress\.hosts"),
        ({"secrets": SECRETS, "image": {"digest": "sha256:short"}}, "digest"),
        ({"secrets": SECRETS, "labels": {"app.kubernetes.io/name": "mine"}}, "app.kubernetes.io/name"),
        ({"replica": 3}, "replica"),
        ({"secrets": SECRETS, "cache": {"capacity": "a lot"}}, "capacity"),
        ({"secrets": SECRETS, "cache": {"storage": {"kind": "nfs"}}}, "kind"),
        ({"secrets": SECRETS, "server": {"workers": 0}}, "workers"),
        ({"secrets": SECRETS, "fleet": {"zone": "rack 12"}}, "zone"),
        ({"secrets": {"FLEET_SECRET": "x"}}, "FLEET_SECRET"),
        ({"secrets": SECRETS | {"LARDER_FLEET__SECRET": "short"}}, "LARDER_FLEET__SECRET"),
        ({"replicas": 2}, "LARDER_FLEET__SECRET"),
        ({"replicas": 2, "secrets": {"LARDER_FLEET__SECRET": SECRETS["LARDER_FLEET__SECRET"]}}, "LARDER_REDIS__URL"),
        ({"secrets": OPEN}, "LARDER_DATABASE__URL"),
        ({"secrets": OPEN, "catalog": "shared"}, "LARDER_DATABASE__URL"),
        ({"replicas": 1, "secrets": OPEN, "cache": EMPTY_DIR}, "LARDER_DATABASE__URL"),
        ({"secrets": SECRETS, "config": '[[origins]]\nendpoint = "http://origin"\n[admin]\ntoken = "t"\n'}, "perNode"),
        ({"existingSecret": "mine"}, "the Secret mine"),
        ({"secrets": SECRETS, "catalog": "local"}, "catalog"),
        ({"secrets": SECRETS, "cache": {"storage": {"whenScaled": "Forget"}}}, "whenScaled"),
    ],
)
def test_values_that_cannot_be_are_refused(values: Mapping[str, Any], said: str) -> None:
    """Rule: names that do not exist, values that no gateway takes, and a fleet without secret or Redis are refused by name."""
    with pytest.raises(helm_python.HelmError, match=said):
        render(values)


@pytest.mark.parametrize(
    ("values", "warned"),
    [
        ({"secrets": OPEN | DATABASE}, False),
        ({"secrets": OPEN, "config": IN_FILE}, False),
        ({"secrets": OPEN, "catalog": "perNode"}, True),
        ({"existingSecret": "mine", "catalog": "shared"}, False),
        ({"existingSecret": "mine", "catalog": "perNode"}, True),
        ({"replicas": 1, "secrets": OPEN}, True),
        ({"secrets": SECRETS}, False),
    ],
)
def test_keys_and_revocations_outlive_their_pods(values: Mapping[str, Any], warned: bool) -> None:
    """Rule: a catalog on a pod's volume must be requested explicitly, and is noted; so must the deletion of volumes."""
    rendered = render(values)
    assert ("a catalog of its own" in rendered.notes) == warned
    policy = rendered.one("StatefulSet")["spec"]["persistentVolumeClaimRetentionPolicy"]
    assert policy == {"whenDeleted": "Retain", "whenScaled": "Retain"}


def test_prometheus_is_told_where_and_what() -> None:
    """Rule: the ServiceMonitor scrapes each node separately; the PrometheusRule has the alerts of deploy/prometheus."""
    rendered = render(VALUES["monitoring"])
    monitor = rendered.one("ServiceMonitor")["spec"]
    asked = [
        each["metadata"]["name"]
        for each in rendered.documents
        if each["kind"] == "Service"
        and monitor["selector"]["matchLabels"].items() <= each["metadata"]["labels"].items()
    ]
    assert asked == ["larder-nodes"]
    assert monitor["endpoints"][0]["path"] == "/-/metrics"
    assert rendered.one("Service", "larder-nodes")["metadata"]["labels"][monitor["jobLabel"]].startswith("larder")
    rules = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text())
    assert rendered.one("PrometheusRule")["spec"] == rules


def test_prometheus_sends_a_token_if_there_is_one() -> None:
    """Rule: the ServiceMonitor sends the read token of secrets, or the named key of existingSecret. It names no key that may be
    missing, as the operator would drop the whole ServiceMonitor."""
    enabled = {"enabled": True}
    shared = {"existingSecret": "mine", "catalog": "perNode"}
    of_secrets = {"secrets": {**SECRETS, "LARDER_ADMIN__READ_TOKEN": "reads"}}
    for values, sent in (
        ({"secrets": SECRETS}, None),
        (of_secrets, {"credentials": {"name": "larder", "key": "LARDER_ADMIN__READ_TOKEN"}}),
        (shared, None),
    ):
        rendered = render({**values, "catalog": "perNode", "serviceMonitor": enabled})
        (endpoint,) = rendered.one("ServiceMonitor")["spec"]["endpoints"]
        assert endpoint.get("authorization") == sent
    named = render({**shared, "serviceMonitor": {**enabled, "tokenKey": "LARDER_ADMIN__READ_TOKEN"}})
    (endpoint,) = named.one("ServiceMonitor")["spec"]["endpoints"]
    assert endpoint["authorization"] == {"credentials": {"name": "mine", "key": "LARDER_ADMIN__READ_TOKEN"}}


def test_the_network_lets_in_who_should_come() -> None:
    """Rule: the policy admits the nodes always, and the namespace or the peers in ``clients``."""
    own = {
        "podSelector": {
            "matchLabels": render({"secrets": SECRETS}).one("StatefulSet")["spec"]["selector"]["matchLabels"]
        }
    }
    usual = render(VALUES["defaults"]).one("NetworkPolicy")["spec"]
    chosen = render(VALUES["policies"]).one("NetworkPolicy")["spec"]
    assert (usual["policyTypes"], usual["ingress"][0]["from"]) == (["Ingress"], [own, {"podSelector": {}}])
    assert chosen["policyTypes"] == ["Ingress", "Egress"]
    assert chosen["ingress"][0]["from"] == [own, *CLIENTS]
    assert chosen["egress"] == EGRESS
    assert not render(VALUES["no policy"]).has("NetworkPolicy")


def test_the_image_is_of_this_version() -> None:
    """Rule: without a tag of the user's, the image is that of the chart's appVersion, which is the gateway's version."""
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"] == __version__
    assert render({"secrets": SECRETS}).gateway["image"] == f"larder-gateway:{__version__}"
