"""Where checkpoints are kept, and what happens to damaged ones."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from databus.client.checkpoints.store import FileCheckpoints, MemoryCheckpoints, hold_in, save_in
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import CheckpointError

SOURCES = ("shop.orders", "shop.customers")


@pytest.fixture
def store(tmp_path: Path) -> FileCheckpoints:
    return FileCheckpoints(tmp_path / "state")


def test_what_was_saved_is_loaded_again(store: FileCheckpoints) -> None:
    assert store.load("default", SOURCES) is None
    store.save("default", SOURCES, Checkpoint.at(5, 1005))
    store.save("default", SOURCES, Checkpoint.at(6, 1006))
    assert FileCheckpoints(store.directory).load("default", SOURCES) == Checkpoint.at(6, 1006)
    assert [p.suffix for p in store.directory.iterdir()] == [".json"]


@pytest.mark.parametrize(
    ("name", "sources"),
    [
        ("default", ("shop.customers", "shop.orders")),
        ("default", ("shop.orders",)),
        ("default", ("shop.orders,shop.customers",)),
        ("other", SOURCES),
        ("Default", SOURCES),
        ("default/../../x", SOURCES),
        ("d" * 1000, SOURCES),
        ("d" * 1001, SOURCES),
        ("größe", SOURCES),
        ("gr??e", SOURCES),
    ],
)
def test_no_two_registrations_share_a_checkpoint(
    store: FileCheckpoints, name: str, sources: tuple[str, ...]
) -> None:
    store.save("default", SOURCES, Checkpoint.at(5))
    assert store.load(name, sources) is None
    store.save(name, sources, Checkpoint.at(9))
    assert store.load("default", SOURCES) == Checkpoint.at(5)
    assert store.load(name, sources) == Checkpoint.at(9)
    assert all(path.parent == store.directory for path in store.directory.iterdir())


def test_files_have_the_names_that_they_always_had(store: FileCheckpoints) -> None:
    # Under another name there would be no checkpoint, and all comes again.
    digest = "29467116854bc14471fb7620209432ef67b81a37204aabe12ba2c5d2be755a41"
    path = store.path("a/b" + "c" * 100, SOURCES)
    assert path.name == f"a_b{'c' * 57}-{digest}.json"


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"checkpoint": 5}'])
def test_a_damaged_file_is_an_error_that_says_which_and_what_to_do(
    store: FileCheckpoints, damage: bytes
) -> None:
    store.save("default", SOURCES, Checkpoint.at(5))
    path = store.path("default", SOURCES)
    path.write_bytes(damage)
    with pytest.raises(CheckpointError, match="restore it from a copy, or remove it") as caught:
        store.load("default", SOURCES)
    assert str(path) in str(caught.value)


def test_a_file_cut_anywhere_is_an_error(store: FileCheckpoints) -> None:
    store.save("default", SOURCES, Checkpoint.at(5))
    path = store.path("default", SOURCES)
    whole = path.read_bytes()
    for length in range(len(whole) - 2):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError):
            store.load("default", SOURCES)


def test_no_flipped_bit_makes_another_checkpoint(store: FileCheckpoints) -> None:
    saved = replace(Checkpoint.at(70_000, 1005), prev_scn=69_000, extra={"mine": "x"})
    store.save("default", SOURCES, saved)
    path = store.path("default", SOURCES)
    whole = path.read_bytes()
    refused = 0
    for at, bit in product(range(len(whole)), range(8)):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << bit
        path.write_bytes(damaged)
        try:
            assert store.load("default", SOURCES) == saved
        except CheckpointError as error:
            refused += str(path) in str(error)
    assert refused > 8 * len(whole) / 2  # the others are in white space


def test_a_file_of_before_there_were_checksums_is_taken_and_gets_one(
    store: FileCheckpoints, caplog: pytest.LogCaptureFixture
) -> None:
    store.save("default", SOURCES, Checkpoint.at(5))
    path = store.path("default", SOURCES)
    old = json.loads(path.read_text())
    del old["crc"]
    path.write_text(json.dumps(old))
    with caplog.at_level("INFO"):
        assert store.load("default", SOURCES) == Checkpoint.at(5)
    assert "has no checksum yet" in caplog.text
    store.save("default", SOURCES, Checkpoint.at(6))
    assert "crc" in json.loads(path.read_text())


@pytest.mark.parametrize("key", ["windowScn", "windowOffset"])
def test_a_file_without_a_checksum_whose_place_has_lost_its_name_is_not_nowhere(
    store: FileCheckpoints, key: str
) -> None:
    store.save("default", SOURCES, Checkpoint.at(5))
    path = store.path("default", SOURCES)
    old = json.loads(path.read_text())
    del old["crc"]
    path.write_text(json.dumps(old).replace(key, key[:-1] + "m"))
    with pytest.raises(CheckpointError, match="lacks windowScn"):
        store.load("default", SOURCES)


def test_another_registrations_file_is_not_taken(store: FileCheckpoints) -> None:
    store.save("default", SOURCES, Checkpoint.at(5))
    store.path("default", SOURCES).rename(store.path("other", SOURCES))
    with pytest.raises(CheckpointError, match="checkpoint of 'default'"):
        store.load("other", SOURCES)


def test_a_crash_while_writing_leaves_the_old_one(store: FileCheckpoints) -> None:
    store.save("default", SOURCES, Checkpoint.at(5))
    store.path("default", SOURCES).with_suffix(".json.new").write_text('{"half')
    assert store.load("default", SOURCES) == Checkpoint.at(5)
    store.save("default", SOURCES, Checkpoint.at(6))
    assert store.load("default", SOURCES) == Checkpoint.at(6)


@pytest.mark.parametrize("name", ["registration", "sources", "checkpoint", "crc"])
def test_a_file_whose_parts_have_other_names_is_damaged(store: FileCheckpoints, name: str) -> None:
    store.save("default", SOURCES, Checkpoint.at(5))
    path = store.path("default", SOURCES)
    path.write_text(path.read_text().replace(f'"{name}":', f'"{name.upper()}":'))
    with pytest.raises(CheckpointError, match="restore it from a copy, or remove it"):
        store.load("default", SOURCES)


def test_a_file_edited_by_hand_is_an_error_that_names_the_command(store: FileCheckpoints) -> None:
    store.save("default", SOURCES, Checkpoint.at(5))
    path = store.path("default", SOURCES)
    path.write_text(path.read_text().replace('"windowScn": 5', '"windowScn": 4'))
    with pytest.raises(CheckpointError, match=r"edited by hand; .*`databus checkpoint set`"):
        store.load("default", SOURCES)


def test_a_directory_is_made_with_those_above_it(tmp_path: Path) -> None:
    store = FileCheckpoints(tmp_path / "var" / "lib" / "state")
    store.save("default", SOURCES, Checkpoint.at(5))
    assert store.load("default", SOURCES) == Checkpoint.at(5)


def test_a_directory_that_cannot_be_written_is_an_error_that_names_the_setting(
    tmp_path: Path,
) -> None:
    (tmp_path / "state").write_text("a file where the directory should be")
    with pytest.raises(CheckpointError, match="checkpoint_dir"):
        FileCheckpoints(tmp_path / "state").save("default", SOURCES, Checkpoint.at(5))


def test_a_file_that_cannot_be_read_is_an_error_that_names_the_setting(
    store: FileCheckpoints,
) -> None:
    store.path("default", SOURCES).mkdir(parents=True)
    with pytest.raises(CheckpointError, match=r"cannot be read.*checkpoint_dir"):
        store.load("default", SOURCES)


def test_what_a_store_of_somebodys_own_raises_is_an_error_of_the_checkpoint() -> None:
    class Broken(MemoryCheckpoints):
        def save(self, *_: object) -> None:
            raise KeyError("no such table")

    memory = MemoryCheckpoints()
    save_in(memory, "default", SOURCES, Checkpoint.at(5))
    assert memory.load("default", SOURCES) == Checkpoint.at(5)
    hold_in(memory, "default", SOURCES)()
    with pytest.raises(CheckpointError, match=r"'default' cannot be written: KeyError"):
        save_in(Broken(), "default", SOURCES, Checkpoint.at(5))


def test_memory_keeps_each_registration_apart() -> None:
    store = MemoryCheckpoints()
    store.save("a", ["x"], Checkpoint.at(5))
    assert store.load("a", ("x",)) == Checkpoint.at(5)
    assert store.load("b", ("x",)) is None
