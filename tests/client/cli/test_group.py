"""`databus group`, and `databus client run --processes`, on groups of real clients."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from click.testing import CliRunner, Result

from databus.cli.main import main
from databus.client.cli.processes import without_processes
from databus.client.membership import halted
from databus.leases.places import open_leases
from databus.servers.entry import HeldSource, ServerEntry
from databus.servers.places import open_directory
from tests import PATIENCE_S
from tests.client.test_group_registration import (
    PARTITIONS,
    SOURCE,
    Noting,
    Seen,
    joined,
    member,
    owned_by,
    patiently,
)
from tests.client.test_with_relay import RunningRelay, database, insert
from tools.repository import ROOT

__all__ = ["database"]


class AnyPartitions(Noting):
    """A consumer that does not know how many partitions its group has."""

    def on_data_event(self, event: Any) -> None:
        assert set(event.partitions) <= self.owned
        with self._seen.lock:
            self._seen.keys.append(event.wire_key)


def group(folder: Path, *arguments: str) -> Result:
    url = f"file:{folder / 'state'}"
    return CliRunner().invoke(main, ["group", *arguments, "--coordinator", url])


def shown(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(group(folder, "show", "billing", "--json").output)
    return found


def test_a_group_is_listed_and_shown_with_owners_and_positions(
    database: sqlite3.Connection, tmp_path: Path
) -> None:
    seen = Seen()
    with RunningRelay(tmp_path) as relay:
        client = joined(member(relay, tmp_path), Noting("a", seen))
        insert(database, 1, 50)
        patiently(lambda: len(seen.keys) == 50)
        patiently(lambda: all(one["scn"] == 50 for one in shown(tmp_path)["positions"]))
        found = shown(tmp_path)
        assert found["processes"] == [found["positions"][0]["process"]]
        assert "billing" in group(tmp_path, "list").output
        table = group(tmp_path, "show", "billing").output
        assert "50" in table
        assert "ago" in table
        (process,) = found["processes"]
        assert {(one["owner"], one["term"] > 0) for one in found["positions"]} == {(process, True)}
        patiently(lambda: bool(shown(tmp_path)["moves"]))
        (move,) = shown(tmp_path)["moves"]
        assert (move["from"], move["to"]) == ("", process)
        assert move["partitions"] == list(range(PARTITIONS))
        assert f"nobody → {process}" in " ".join(group(tmp_path, "show", "billing").output.split())
        client.stop()
    (listed,) = json.loads(group(tmp_path, "list", "--json").output)
    assert (listed["processes"], listed["partitions"]) == ([], PARTITIONS)
    assert "no process runs" in group(tmp_path, "list").output
    unknown = group(tmp_path, "show", "other")
    assert unknown.exit_code == 1
    assert "databus group list" in unknown.output


@pytest.mark.parametrize("numbers", [(12, 4), (3, 8)])
def test_a_group_that_is_resized_while_it_reads_gets_every_row_once(
    database: sqlite3.Connection, tmp_path: Path, numbers: tuple[int, ...]
) -> None:
    seen = Seen()
    with RunningRelay(tmp_path) as relay:
        consumers = [AnyPartitions(name, seen) for name in ("a", "b")]
        clients = [joined(member(relay, tmp_path), one) for one in consumers]
        last = 0
        for number in numbers:
            insert(database, last + 1, 100)
            resized = group(tmp_path, "resize", "billing", str(number))
            assert resized.exit_code == 0, resized.output
            insert(database, last + 101, 100)
            last += 200
            patiently(lambda: sum(len(owned_by(one)) for one in clients) == number)  # noqa: B023
        patiently(lambda: len(seen.keys) >= last)
        for client in clients:
            client.stop()
    assert seen.counts() == Counter(range(1, last + 1))
    assert shown(tmp_path)["generation"] == len(numbers)


def test_a_group_that_is_reset_gets_its_rows_again_and_none_is_left_out_that_is_to_come(
    database: sqlite3.Connection, tmp_path: Path
) -> None:
    seen = Seen()
    with RunningRelay(tmp_path) as relay:
        insert(database, 1, 20)
        client = joined(member(relay, tmp_path), Noting("a", seen))
        patiently(lambda: len(seen.keys) == 20)
        reset = group(tmp_path, "reset", "billing", "--to", "earliest")
        assert reset.exit_code == 0, reset.output
        patiently(lambda: len(seen.keys) == 40)
        client.stop()
        assert seen.counts() == Counter(dict.fromkeys(range(1, 21), 2))
        unknown = group(tmp_path, "reset", "billing", "--to", "21")
        assert unknown.exit_code == 1
        assert "up to 20, and no relay is listed" in unknown.output.replace("\n", " ")
        ahead = ("reset", "billing", "--to", "21", "--relay", relay.url)
        refused = group(tmp_path, *ahead)
        assert refused.exit_code == 1
        assert "the newest window is 20" in refused.output
        assert group(tmp_path, "reset", "billing", "--to", "10").exit_code == 0
        entry = ServerEntry("a", "relay", relay.url, "", 0, {"shop": HeldSource((SOURCE,), -1, 20)})
        with closing(open_directory(f"file:{tmp_path / 'state'}")) as directory:
            directory.put(entry)
            assert "the newest window is 20" in group(tmp_path, *ahead[:4]).output
            assert group(tmp_path, *ahead[:3], "20").exit_code == 0
    refused = group(tmp_path, "reset", "billing", "--to", "latest")
    assert refused.exit_code == 1
    assert "give an SCN" in refused.output


def test_a_group_that_another_command_has_halted_says_by_whom(
    database: sqlite3.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RunningRelay(tmp_path) as relay:
        client = joined(member(relay, tmp_path), Noting("a", Seen()))
        patiently(lambda: len(owned_by(client)) == PARTITIONS)
        client.stop()
    monkeypatch.setattr(halted, "_ENDED_AFTER_S", 2.0)
    leases = open_leases(f"file:{tmp_path / 'state'}")
    lease = leases.acquire("group/billing/halt", "somebody", 10.0)
    assert lease is not None
    refused = group(tmp_path, "resize", "billing", "4")
    assert refused.exit_code == 1
    assert "somebody is at work" in refused.output
    leases.release(lease)
    assert group(tmp_path, "resize", "billing", "4").exit_code == 0


@pytest.mark.parametrize(
    "command", [("resize", "billing", "6"), ("reset", "billing", "--to", "earliest")]
)
def test_a_command_that_was_killed_is_given_again_and_until_then_all_say_so(
    database: sqlite3.Connection, tmp_path: Path, command: tuple[str, ...]
) -> None:
    seen = Seen()
    with RunningRelay(tmp_path) as relay:
        client = joined(member(relay, tmp_path, http={"port": 0}), AnyPartitions("a", seen))
        insert(database, 1, 20)
        patiently(lambda: len(seen.keys) == 20)
        kill_in_the_middle(tmp_path)
        (registration,) = client.registrations
        patiently(lambda: "is halted, resized by" in registration.problem)
        assert "give it again" in registration.problem
        with pytest.raises(HTTPError) as unhealthy:
            urlopen(f"{client.url}/health")
        assert "is halted" in unhealthy.value.read().decode()
        unhealthy.value.close()
        insert(database, 21, 20)
        again = group(tmp_path, *command)
        assert again.exit_code == 0, again.output
        patiently(lambda: set(seen.keys) == set(range(1, 41)))
        patiently(lambda: urlopen(f"{client.url}/health").status == 200)
        client.stop()


def kill_in_the_middle(folder: Path) -> None:
    """Start a resize whose process dies once it has halted the group."""
    script = (
        "import os, signal, sys\n"
        "from databus.client.cli import group\n"
        "def die(*_):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "group.HaltedGroup.resize = die\n"
        "from databus.cli.main import main\n"
        "main()\n"
    )
    command = [sys.executable, "-c", script, "group", "resize", "billing", "6"]
    killed = subprocess.run(
        [*command, "--coordinator", f"file:{folder / 'state'}"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
        timeout=PATIENCE_S,
    )
    assert killed.returncode == -signal.SIGKILL


def test_a_command_for_a_group_that_is_not_there_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    for command in (("resize", "nope", "4"), ("reset", "nope", "--to", "earliest")):
        refused = group(tmp_path, *command)
        assert refused.exit_code == 1
        assert "no group 'nope'" in refused.output
    assert list((tmp_path / "state").rglob("*.json")) == []
    assert "no group meets at" in group(tmp_path, "list").output


def terminate(whole: subprocess.Popen[bytes]) -> None:
    whole.terminate()
    assert whole.wait(PATIENCE_S) == 0


def kill(whole: subprocess.Popen[bytes]) -> None:
    """Kill it: the others give their partitions back, and end, all the same."""
    whole.kill()
    whole.wait()


@pytest.mark.parametrize("end", [terminate, kill])
def test_processes_of_one_command_share_the_rows_and_one_that_is_killed_comes_back(
    database: sqlite3.Connection, tmp_path: Path, end: Callable[[subprocess.Popen[bytes]], None]
) -> None:
    with RunningRelay(tmp_path) as relay:
        (tmp_path / "client.toml").write_text(
            f'relays = ["{relay.url}"]\ncheckpoint_dir = "state"\ngroup = "billing"\n'
            "partitions = 8\ngroup_ttl_s = 5.0\n"
        )
        (tmp_path / "app.py").write_text(
            "import os\n"
            "def take(event):\n"
            "    with open('seen', 'a') as file:\n"
            "        file.write(f'{os.getpid()} {event.wire_key}\\n')\n"
        )
        command = [sys.executable, "-m", "databus.cli.main", "client", "run", "-c", "client.toml"]
        command += ["--consumer", "app:take", "--source", SOURCE, "--processes", "2"]
        whole = subprocess.Popen(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)})

        def lines() -> list[tuple[int, int]]:
            path = tmp_path / "seen"
            text = path.read_text() if path.exists() else ""
            return [(int(a), int(b)) for a, b in (one.split() for one in text.splitlines())]

        try:
            patiently(lambda: _members(tmp_path) == 2)
            insert(database, 1, 50)
            patiently(lambda: len(lines()) >= 50)
            victim = lines()[-1][0]
            os.kill(victim, signal.SIGKILL)
            insert(database, 51, 50)
            patiently(lambda: {key for _, key in lines()} == set(range(1, 101)))
            patiently(lambda: _members(tmp_path) == 2)
        finally:
            end(whole)
        patiently(lambda: _members(tmp_path) == 0)


def _members(folder: Path) -> int:
    found = group(folder, "show", "billing", "--json")
    return len(json.loads(found.output)["processes"]) if found.exit_code == 0 else 0


def test_processes_need_a_group(tmp_path: Path) -> None:
    (tmp_path / "client.toml").write_text('relays = ["http://127.0.0.1:1"]\n')
    command = ["client", "run", "-c", str(tmp_path / "client.toml"), "--processes", "2"]
    found = CliRunner().invoke(main, [*command, "--consumer", "app:take", "--source", SOURCE])
    assert found.exit_code == 1
    assert "no `group`" in found.output


def test_each_process_gets_the_command_without_their_number() -> None:
    command = ["client", "run", "--processes", "4", "-c", "x", "--processes=3", "--source", "a.b"]
    assert without_processes(command) == ["client", "run", "-c", "x", "--source", "a.b"]
