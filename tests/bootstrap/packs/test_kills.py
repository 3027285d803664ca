"""A packer that is killed (SIGKILL) at any moment, while another process writes the store."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

from databus.bootstrap.store.check import check_store
from tests import PATIENCE_S
from tests.bootstrap.filled import PERSON, FilledStore, gone, make_filled, put
from tests.bootstrap.packs.reading import read_table

PERSONS = 3000
KILLS = 8


def write(made: FilledStore, chance: random.Random, scn: int) -> int:
    """Apply a window; return the next one's SCN."""
    keys = chance.sample(range(1, PERSONS), chance.choice([1, 5, 60]))
    changes = [gone(1, key, scn) if key % 3 == 0 else put(1, key, scn) for key in keys]
    made.apply(scn, *changes)
    return scn + 1


def test_killed_at_any_moment_a_packer_leaves_packs_that_are_right(tmp_path: Path) -> None:
    chance, scn, packed = random.Random(1), 102, 0
    path = tmp_path / "shop.db"
    command = [sys.executable, "-m", "tests.bootstrap.packs.child", str(path)]
    with closing(make_filled(path, PERSONS)) as made:
        for _ in range(KILLS):
            with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
                try:
                    assert child.stdout is not None
                    assert child.stdout.readline()
                    end_s = time.monotonic() + chance.random() * 0.5
                    while time.monotonic() < end_s:
                        scn = write(made, chance, scn)
                finally:
                    child.kill()
                    child.wait(PATIENCE_S)
            read = [
                read_table(made.store, PERSON.source, at, takes_packs=takes_packs)
                for at in (scn - 1, scn - 3)
                for takes_packs in (True, False)
            ]
            assert read[0].rows == read[1].rows
            assert read[2].rows == read[3].rows
            packed += read[0].packed
    for _ in check_store(path):
        pass
    assert packed
