"""The sockets of a relay with serving processes."""

from __future__ import annotations

import os
import socket
import stat
from contextlib import ExitStack
from pathlib import Path

import pytest

from databus.conf.settings import HttpSettings
from databus.relay.serving_processes.listening import bind_each, bind_private
from databus.relay.serving_processes.passing_on import SOCKET, socket_address
from databus.schemas.errors import SettingsError

HTTP = HttpSettings(port=0)


def test_all_sockets_listen_on_one_port_and_take_its_connections() -> None:
    with ExitStack() as opened:
        url, sockets = bind_each(HTTP, 3)
        for one in sockets:
            opened.enter_context(one)
            one.setblocking(False)
        (port,) = {one.getsockname()[1] for one in sockets}
        assert url == f"http://127.0.0.1:{port}"
        for _ in range(60):
            opened.enter_context(socket.create_connection(("127.0.0.1", port)))
        taken = []
        for one in sockets:
            count = 0
            while True:
                try:
                    opened.enter_context(one.accept()[0])
                except BlockingIOError:
                    break
                count += 1
            taken.append(count)
        assert sum(taken) == 60
        assert all(taken)


@pytest.mark.parametrize("shares", [False, True])
def test_a_port_on_which_somebody_listens_is_refused(shares: bool) -> None:
    with socket.create_server(("127.0.0.1", 0), reuse_port=shares) as taken:
        http = HttpSettings(port=taken.getsockname()[1])
        with pytest.raises(SettingsError, match="is in use"):
            bind_each(http, 2)


def test_the_private_socket_is_bound_in_a_folder_with_a_long_name(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 120)
    folder.mkdir()
    for _ in range(2):  # the second replaces what a killed relay has left
        with bind_private(folder) as listening:
            assert stat.S_IMODE((folder / SOCKET).stat().st_mode) == 0o600
            fd, address = socket_address(folder)
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(address)
                listening.setblocking(True)
                listening.accept()[0].close()
            os.close(fd)
