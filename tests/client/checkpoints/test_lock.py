"""Two readers of one registration never write the same checkpoint."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from databus.client.checkpoints.store import take_lock
from databus.client.client import DatabusClient
from databus.client.consumer import Consumer
from databus.client.impatient_client import ImpatientClient
from databus.schemas.errors import CheckpointError
from tests import PATIENCE_S
from tests.client.shop import wait_until

NOBODY = "http://127.0.0.1:1"
OTHER_PROCESS = """
import sys
from pathlib import Path
from databus.client.client import DatabusClient
from databus.client.consumer import Consumer

client = DatabusClient(["http://127.0.0.1:1"], checkpoint_dir=Path(sys.argv[1]))
client.register(Consumer(), ["shop.orders"])
with client:
    print("reading", flush=True)
    sys.stdin.readline()
"""


def make_client(directory: Path) -> DatabusClient:
    client = DatabusClient([NOBODY], checkpoint_dir=directory)
    client.register(Consumer(), ["shop.orders"])
    return client


def test_a_second_process_is_refused_and_told_which_file_and_which_process(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OTHER_PROCESS, str(tmp_path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdin is not None
        assert other.stdout.readline() == "reading\n"
        with pytest.raises(CheckpointError, match=f"process {other.pid} ") as caught:
            make_client(tmp_path).start()
        assert str(tmp_path) in str(caught.value)
        # Other sources, or another name, are another checkpoint.
        client = DatabusClient([NOBODY], checkpoint_dir=tmp_path)
        client.register(Consumer(), ["shop.customers"])
        with client:
            pass
        other.stdin.write("\n")
        other.stdin.close()
        assert other.wait(PATIENCE_S) == 0
    with make_client(tmp_path):
        pass


def test_a_process_that_was_killed_holds_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OTHER_PROCESS, str(tmp_path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        other.kill()
    with make_client(tmp_path):
        pass


def test_two_clients_of_one_process_are_kept_apart_and_stop_lets_go(tmp_path: Path) -> None:
    with make_client(tmp_path), pytest.raises(CheckpointError, match=f"process {os.getpid()} "):
        make_client(tmp_path).start()
    with make_client(tmp_path):
        pass


def stop_when_it_reads(client: DatabusClient) -> None:
    wait_until(client.status)
    client.stop()


def test_an_iteration_holds_its_checkpoint_until_it_is_over(tmp_path: Path) -> None:
    for _ in range(2):
        with ImpatientClient([NOBODY], checkpoint_dir=tmp_path) as client:
            # Nobody answers: stopping is what ends the iteration.
            stopper = threading.Thread(target=stop_when_it_reads, args=(client,))
            stopper.start()
            assert list(client.windows("shop.orders")) == []
            stopper.join()
            with make_client(tmp_path):
                pass


def test_a_client_that_could_not_start_lets_go_of_what_it_held(tmp_path: Path) -> None:
    damaged = make_client(tmp_path)
    store = damaged._context.store
    store.path("default", ["shop.orders"]).write_text("damaged")  # type: ignore[attr-defined]
    damaged.register(Consumer(), ["shop.customers"])
    with pytest.raises(CheckpointError, match="cannot be read"):
        damaged.start()
    client = DatabusClient([NOBODY], checkpoint_dir=tmp_path)
    client.register(Consumer(), ["shop.customers"])
    with client:
        pass


def test_a_folder_that_cannot_be_used_is_named_with_its_setting(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="checkpoint_dir"):
        take_lock(tmp_path / "file" / "some.lock")
