"""A ring and a registry that were not written together are told apart at the start."""

from __future__ import annotations

from pathlib import Path

import pytest

from databus.registry.sqlite_store import SqliteStore
from databus.registry.version import StoredVersion
from databus.schemas.errors import RingError, SchemaError
from tests.relay.fakes import ORDERS, PERSON, ServedRelay, insert, transaction


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The data folder of a relay that captured two rows and was stopped."""
    served = ServedRelay(tmp_path)
    served.put(transaction(11, insert(1)), transaction(12, insert(5, table=ORDERS)))
    data_dir = served.settings.data_dir
    served.close()
    return data_dir


def start_again(folder: Path) -> None:
    ServedRelay(folder).close()


def test_a_relay_starts_with_what_it_wrote(tmp_path: Path, folder: Path) -> None:
    assert (folder / "shop.ring").exists()
    start_again(tmp_path)


def test_a_registry_that_is_gone_with_its_copy_stops_a_ring_with_rows_until_it_is_back(
    tmp_path: Path, folder: Path
) -> None:
    kept = {path: path.read_bytes() for path in folder.glob("schemas.db*")}
    for path in kept:
        path.unlink()
    for _ in range(2):  # what the first start wrote makes nothing look well
        with pytest.raises(RingError, match=r"shop\.ring has rows of source id .*schemas\.db") as e:
            start_again(tmp_path)
        assert "move" in str(e.value)
    (folder / "schemas.db").write_bytes(kept[folder / "schemas.db"])
    start_again(tmp_path)


def test_a_registry_with_other_ids_stops_the_ring(tmp_path: Path, folder: Path) -> None:
    right = SqliteStore(folder / "schemas.db")
    versions, ids = right.load_versions(), right.load_sources()
    for path in folder.glob("schemas.db*"):
        path.unlink()
    other = SqliteStore(folder / "schemas.db")
    for name, src_id in ids.items():
        other.save_sources({name: src_id + 14})
    for version in versions:
        other.save_versions([StoredVersion(*version)])
    with pytest.raises(RingError, match="the two were not written together"):
        start_again(tmp_path)


def test_a_registry_of_another_relay_beside_the_right_copy_stops_the_relay(
    tmp_path: Path, folder: Path
) -> None:
    (tmp_path / "other").mkdir()
    other = SqliteStore(tmp_path / "other" / "schemas.db")
    other.save_sources({PERSON.source: 77})
    other.path.replace(folder / "schemas.db")
    with pytest.raises(SchemaError, match="two different relays"):
        start_again(tmp_path)
    (folder / "schemas.db").unlink()
    start_again(tmp_path)


def test_a_ring_without_rows_needs_no_registry(tmp_path: Path, folder: Path) -> None:
    for path in (*folder.glob("schemas.db*"), *folder.glob("shop.ring*"), *folder.glob("*.scn")):
        path.unlink()
    start_again(tmp_path)
