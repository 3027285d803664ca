"""docs/deploy/compose.yaml: nothing has to be prepared, and what it starts works together.

No container runs here: the same settings, SQL, options and commands run as processes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from databus.conf.loading import load_settings
from databus.conf.settings import ClientSettings, RelaySettings
from databus.demo.private_mariadb import PrivateMariaDB
from databus.demo.processes import Child, free_port, python_module, wait_until
from tests import PATIENCE_S
from tests.docs.deploy.test_deploy import DEPLOY, IMAGE, parse
from tests.mariadb_server import connect
from tools.repository import ROOT

COMPOSE: Any = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
OURS = ("databus", "consumer")


def mounts(service: str) -> dict[str, str]:
    """Return where each file, folder or volume of a service is seen in its container."""
    return dict(reversed(one.split(":")[:2]) for one in SERVICES[service].get("volumes", []))


def test_every_file_that_is_mounted_is_in_the_repository() -> None:
    named = [of for service in SERVICES for of in mounts(service).values() if of[0] in "./"]
    assert named
    assert [of for of in named if not (DEPLOY / of).is_file()] == []
    assert (DEPLOY / SERVICES["databus"]["build"]["context"] / "pyproject.toml").is_file()


def test_every_other_service_and_volume_that_is_named_is_there() -> None:
    waited = {other for one in SERVICES.values() for other in one.get("depends_on", ())}
    assert waited <= set(SERVICES)
    volumes = {of for service in SERVICES for of in mounts(service).values() if of[0] not in "./"}
    assert volumes == set(COMPOSE["volumes"])


@pytest.mark.parametrize("service", OURS)
def test_our_containers_run_commands_that_there_are_and_write_to_volumes_alone(
    service: str,
) -> None:
    parse(SERVICES[service]["command"])
    assert SERVICES[service]["read_only"] is True
    trial, file = DEPLOY / "trial", {"databus": "databus.toml", "consumer": "client.toml"}[service]
    assert mounts(service)[f"/etc/databus/{file}"] == f"./trial/{file}"
    if service == "databus":
        written: Path | None = load_settings(trial / file, RelaySettings).data_dir
    else:
        written = load_settings(trial / file, ClientSettings).checkpoint_dir
    folders = [place for place, of in mounts(service).items() if of in COMPOSE["volumes"]]
    assert written is not None
    assert any(written.is_relative_to(folder) for folder in folders)
    # A new volume belongs to whom the folder in the image does, and the user there is not root.
    assert all(folder in IMAGE for folder in folders)


def test_strangers_reach_nothing_and_every_image_has_a_version() -> None:
    ports = [port for one in SERVICES.values() for port in one.get("ports", ())]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)
    others = [one["image"] for name, one in SERVICES.items() if name not in OURS]
    assert all(re.search(r":v?\d+\.\d+", image) for image in others)


def test_prometheus_asks_every_server_that_has_figures() -> None:
    jobs = yaml.safe_load((DEPLOY / "trial" / "prometheus.yml").read_text())["scrape_configs"]
    asked = {target for job in jobs for one in job["static_configs"] for target in one["targets"]}
    relay = load_settings(DEPLOY / "trial" / "databus.toml", RelaySettings)
    client = load_settings(DEPLOY / "trial" / "client.toml", ClientSettings)
    assert client.http is not None
    assert asked == {
        f"databus:{relay.http.port}",
        f"databus:{relay.bootstrap.port}",
        f"consumer:{client.http.port}",
    }


@pytest.fixture
def server() -> Iterator[PrivateMariaDB]:
    """Run a MariaDB with the options of the container, filled as it is there."""
    words = [word.removeprefix("--").partition("=") for word in SERVICES["db"]["command"]]
    with PrivateMariaDB(options={name: value or "ON" for name, _, value in words}) as made:
        sql = (DEPLOY / "trial" / "shop.sql").read_text()
        sql = sql.replace("'databus'@", "'trial'@")  # the private server's own has that name
        connection = connect(made)
        with connection, connection.cursor() as cursor:
            for statement in filter(None, map(str.strip, sql.split(";"))):
                cursor.execute(statement)
        yield made


@pytest.fixture
def ports() -> dict[str, int]:
    """Free ports for those of the settings."""
    return {wanted: free_port() for wanted in ("11115", "11116", "11117")}


def settings_here(name: str, folder: Path, server: PrivateMariaDB, ports: dict[str, int]) -> Path:
    """Write settings whose hosts, ports and folders are those of this machine."""
    text = (DEPLOY / "trial" / name).read_text()
    text = text.replace("databus@db:3306", f"trial@127.0.0.1:{server.port}").replace(
        "0.0.0.0", "127.0.0.1"
    )
    text = text.replace("http://databus:", "http://127.0.0.1:").replace("/var/lib", str(folder))
    for wanted, port in ports.items():
        text = text.replace(wanted, str(port))
    file = folder / name
    file.write_text(text.replace("open_to_all = true\n", ""))
    return file


@pytest.mark.mariadb
def test_what_it_starts_prints_the_rows_from_before_and_then_the_changes(
    server: PrivateMariaDB, ports: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in SERVICES["databus"]["environment"].items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "examples"))
    started = []
    for service, name in (("databus", "databus.toml"), ("consumer", "client.toml")):
        file = settings_here(name, tmp_path, server, ports)
        command = [
            str(file) if word.startswith("/etc/databus/") else word
            for word in SERVICES[service]["command"]
        ]
        started.append(Child(service, python_module("databus.cli.main", *command), tmp_path))
    try:
        for child in started:
            child.start()
        consumer = started[1]
        wait_until(lambda: "insert shop.orders" in consumer.log_tail(), PATIENCE_S, "a change")
        printed = consumer.log.read_text()
        for number, customer in enumerate(("Ada", "Grace", "Linus"), start=1):
            row = rf"^snapshot shop.orders .*'id': {number}, 'customer': '{customer}'"
            assert len(re.findall(row, printed, re.M)) == 1, printed
        assert "Traceback" not in printed
    finally:
        for child in reversed(started):
            child.stop(20)
