"""docs/deploy/kubernetes.yaml: what Kubernetes takes, with settings that the pods can use."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from databus.conf.loading import build_settings
from databus.conf.settings import ClientSettings, RelaySettings
from tests.docs.deploy.test_deploy import DEPLOY, parse, paths_of

OBJECTS: list[Any] = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
OLDEST = "1.29"
PODS = {"databus": "databus.toml", "databus-consumer": "client.toml"}


def found(kind: str, name: str) -> Any:
    (one,) = (o for o in OBJECTS if (o["kind"], o["metadata"]["name"]) == (kind, name))
    return one


def pod_of(name: str) -> Any:
    return found("StatefulSet", name)["spec"]["template"]["spec"]


def settings_of(name: str) -> Any:
    return tomllib.loads(found("ConfigMap", name)["data"][PODS[name]])


@pytest.mark.parametrize("version", [OLDEST, kubernetes_validate.latest_version()])
def test_every_object_has_the_fields_of_its_schema_and_no_other(version: str) -> None:
    for one in OBJECTS:
        kubernetes_validate.validate(one, version, strict=True)


def test_a_wrong_field_would_be_found() -> None:
    wrong = yaml.safe_load(yaml.safe_dump(found("StatefulSet", "databus")))
    wrong["spec"]["template"]["spec"]["containers"][0]["livenessProb"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, OLDEST, strict=True)


def test_the_settings_are_good_and_safe() -> None:
    relay = build_settings(settings_of("databus"), RelaySettings)
    assert relay.http.has_tokens
    assert relay.http.tls_cert
    client = build_settings(settings_of("databus-consumer"), ClientSettings)
    assert client.access.token_file
    service = found("Service", "databus")
    ports = {port["port"] for port in service["spec"]["ports"]}
    assert ports == {relay.http.port, relay.bootstrap.port}
    assert {*client.relays, *client.bootstrap_servers} == {
        f"https://{service['metadata']['name']}:{port}" for port in ports
    }


@pytest.mark.parametrize("name", PODS)
def test_a_pod_runs_a_command_that_there_is_and_mounts_what_its_settings_name(name: str) -> None:
    pod = pod_of(name)
    (container,) = pod["containers"]
    parse(container["args"])
    assert f"/etc/databus/{PODS[name]}" in container["args"]
    mounts = {one["mountPath"]: one["name"] for one in container["volumeMounts"]}
    for path in paths_of(settings_of(name)):
        assert any(Path(path).is_relative_to(mount) for mount in mounts), path
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes["settings"]["configMap"]["name"] == name
    claims = found("StatefulSet", name)["spec"]["volumeClaimTemplates"]
    assert set(mounts.values()) == {*volumes, *(one["metadata"]["name"] for one in claims)}


@pytest.mark.parametrize("name", PODS)
def test_a_pod_is_nobody_special_and_there_is_one(name: str) -> None:
    assert found("StatefulSet", name)["spec"]["replicas"] == 1
    pod = pod_of(name)
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == 10001  # as the image's folders are
    (container,) = pod["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["allowPrivilegeEscalation"] is False


def test_no_restart_because_of_what_no_restart_mends() -> None:
    (container,) = pod_of("databus")["containers"]
    assert container["livenessProbe"]["httpGet"]["path"] == "/admin"
    assert container["readinessProbe"]["httpGet"]["path"] == "/ready"


def test_the_consumer_in_the_settings_can_be_imported() -> None:
    names: dict[str, Any] = {}
    exec(found("ConfigMap", "databus-consumer")["data"]["printing.py"], names)
    assert "printing:changed" in pod_of("databus-consumer")["containers"][0]["args"]
    assert callable(names["changed"])
