"""Stores by URL, and what is wrong with a URL."""

from __future__ import annotations

from pathlib import Path

import pytest

from databus.daemon.faults import is_transient
from databus.leases import places
from databus.leases.errors import LeaseError, LeaseUnavailableError
from databus.leases.file_records import FileRecords
from databus.leases.places import open_leases, open_records
from databus.leases.zookeeper_records import ZookeeperRecords
from databus.schemas.errors import SettingsError


@pytest.mark.parametrize("url", ["file:{}", "file://{}"])
def test_a_folder_is_named_in_either_way(tmp_path: Path, url: str) -> None:
    records = open_records(url.format(tmp_path))
    assert records.replace("a/b", b"{}", None)
    assert (tmp_path / "a" / "b.json").read_bytes() == b"{}"


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("/var/lib/databus", "give file:FOLDER"),
        ("file:", "give file:FOLDER"),
        ("file://", "give file:FOLDER"),
        ("zookeeper://", "give zookeeper://host:port"),
        ("zookeeper://user:secret@host:x/a", "zookeeper:// is no usable URL: "),
        ("zookeeper://user:secret@host:99999/a", "zookeeper:// is no usable URL: "),
        ("mysql://user:secret@host:abc/x", "mysql:// is no usable URL: "),
        ("mysql://user:secret@host:3306", "names no database"),
        ("zookeeper://user:secret@", "give zookeeper://host:port"),
        ("nosuch://user:secret@host/x", "nosuch:// is no usable URL"),
        ("mysql+nosuch://user:secret@host/x", "is no usable URL"),
    ],
)
def test_a_wrong_url_is_an_error_without_its_password(url: str, problem: str) -> None:
    with pytest.raises(SettingsError, match=problem) as caught:
        open_records(url)
    assert "secret" not in str(caught.value)


def test_a_library_that_is_not_installed_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(name: str) -> object:
        raise ModuleNotFoundError("No module named 'kazoo'")

    monkeypatch.setattr(places, "import_module", missing)
    with pytest.raises(
        SettingsError, match=r"'kazoo': it needs the extra .cluster. of databus-cdc: pip install"
    ):
        open_leases("zookeeper://127.0.0.1:1")


def test_a_server_that_is_down_is_a_transient_error_that_names_no_password() -> None:
    down = [open_records("mysql://user:secret@127.0.0.1:1/x")]
    down.append(ZookeeperRecords("zookeeper://user:secret@127.0.0.1:1/x", timeout_s=0.1))
    for records in down:
        with pytest.raises(LeaseUnavailableError, match=r"127\.0\.0\.1:1/x") as caught:
            records.read("a")
        assert is_transient(caught.value)
        assert "secret" not in str(caught.value)
        records.close()


def test_a_folder_that_is_a_file_is_not_tried_for_ever(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    records = FileRecords(tmp_path / "file")
    for wanted in (lambda: records.read("a"), lambda: records.replace("a", b"", None)):
        with pytest.raises(LeaseError, match="folder of this user's own") as caught:
            wanted()
        assert not is_transient(caught.value)


def test_an_sqlite_file_is_private(tmp_path: Path) -> None:
    records = open_records(f"sqlite:///{tmp_path / 'leases.db'}")
    assert records.read("a") is None
    records.close()
    assert (tmp_path / "leases.db").stat().st_mode & 0o777 == 0o600
