"""The fuzzing in its short form, and what it does to bytes."""

from __future__ import annotations

import random
import shutil
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.capture_fuzz.damage import cut, damage_events, framed, stretch
from benchmarks.capture_fuzz.run import main
from benchmarks.shared import sanitized
from databus.relay.sources.mysql.binlog.packets import PacketReader, StreamEnded
from tools.repository import ROOT

FORMAT, GTID, QUERY = 15, 162, 2


def event(kind: int, end: int, body: bytes) -> bytes:
    head = struct.pack("<IBIIIH", 1, kind, 1, 23 + len(body), end, 0) + body
    return head + struct.pack("<I", zlib.crc32(head))


EVENTS = [
    event(4, 0, struct.pack("<Q", 4) + b"binlog.000001"),
    event(FORMAT, 100, b"described"),
    event(GTID, 200, b"one"),
    event(QUERY, 300, b"COMMIT"),
    event(GTID, 400, b"two"),
    event(QUERY, 500, b"COMMIT"),
]


def events_in(chunks: list[bytes]) -> Iterator[bytes]:
    reader = PacketReader()
    with suppress(StreamEnded):
        for chunk in chunks:
            yield from reader.receive(chunk)


@pytest.mark.mariadb
def test_damaged_binlogs_and_windows_give_only_the_projects_errors() -> None:
    result = CliRunner().invoke(main, ["--rounds", "500", "--seed", "7"])
    assert result.exit_code == 0, result.output
    assert result.stdout.strip().endswith("no findings")
    assert "mariadb FULL" in result.stderr


def test_a_stretch_begins_where_its_first_transaction_does() -> None:
    found = stretch(EVENTS, [2, 4], 1, 1)
    assert found[2:] == EVENTS[4:]
    assert struct.unpack_from("<Q", found[0], 19) == (400 - len(EVENTS[4]),)
    assert struct.unpack_from("<I", found[1], 13) == (0,)
    assert all(zlib.crc32(e[:-4]) == int.from_bytes(e[-4:], "little") for e in found)


def test_pieces_are_the_packets_that_a_server_sends() -> None:
    assert list(events_in(cut(random.Random(3), framed(EVENTS)))) == EVENTS


def test_damage_is_behind_the_checksum_more_often_than_not() -> None:
    sound = changed = 0
    for seed in range(200):
        for found in damage_events(random.Random(seed), EVENTS):
            if found not in EVENTS and len(found) > 23:
                changed += 1
                sound += zlib.crc32(found[:-4]) == int.from_bytes(found[-4:], "little")
    assert changed / 2 < sound < changed


def test_a_built_module_is_loaded_under_the_name_it_is_imported_by(tmp_path: Path) -> None:
    (tmp_path / "setup.py").touch()
    built = tmp_path / "relay" / "sources" / "_decoder.cpython-311-x86_64-linux-gnu.so"
    assert sanitized.module_name(built) == "databus.relay.sources._decoder"


def test_built_modules_are_loaded_although_one_imports_another(tmp_path: Path) -> None:
    (tmp_path / "setup.py").touch()
    # The first one by name imports the second one.
    for name in ("client/dispatcher/_calls", "client/events/_event_fields"):
        (built,) = ROOT.glob(f"{name}.*.so")
        copy = tmp_path / built.relative_to(ROOT)
        copy.parent.mkdir(parents=True)
        shutil.copy(built, copy)
    loads = """
import sys
from pathlib import Path
from benchmarks.shared.sanitized import load_built
load_built(Path(sys.argv[1]))
from databus.client.dispatcher import _calls
from databus.client.events import _event_fields
print(_calls.__file__, _event_fields.__file__)
"""
    ran = subprocess.run(
        [sys.executable, "-c", loads, tmp_path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert all(place.startswith(str(tmp_path)) for place in ran.stdout.split())
