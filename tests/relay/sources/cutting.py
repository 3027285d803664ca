"""A proxy in front of a server that cuts the stream of its log where a test says."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Callable

from databus.demo.private_mariadb import HOST

_DUMPS = (b"\0\x12", b"\0\x1e")  # the first packet of a command: COM_BINLOG_DUMP, …_GTID
_HEADER = 4


class CuttingProxy:
    """Passes everything on, but of each dump only as many packets as `next_cut` says.

    With `cuts_inside`, half of the next one passes too. `next_cut` is called on
    the proxy's threads; None lets all of it pass. A context manager.
    """

    def __init__(self, server_port: int) -> None:
        self.next_cut: Callable[[], int | None] = lambda: None
        self.cuts_inside = False
        self.was_cut = False
        self._server_port = server_port
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self._links: set[socket.socket] = set()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]

    def __enter__(self) -> CuttingProxy:
        self._threads[0].start()
        return self

    def __exit__(self, *exception: object) -> None:
        for link in (self._listener, *self._links):
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client = self._listener.accept()[0]
                thread = threading.Thread(target=self._serve, args=(client,), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _serve(self, client: socket.socket) -> None:
        server = socket.create_connection((HOST, self._server_port))
        links = {client, server}
        self._links |= links
        with client, server, contextlib.suppress(OSError):
            self._pass_on(client, server)
        self._links -= links

    def _pass_on(self, client: socket.socket, server: socket.socket) -> None:
        left: int | None = None
        waiting = b""
        while True:
            for link in select.select([client, server], [], [])[0]:
                data = link.recv(1 << 16)
                if not data:
                    return
                if link is client:
                    if data[3:5] in _DUMPS:
                        left = self.next_cut()
                    server.sendall(data)
                elif left is None:
                    client.sendall(data)
                else:
                    whole, waiting, left = _packets(waiting + data, left)
                    client.sendall(whole)
                    if left == 0 and len(waiting) > _HEADER:
                        self.was_cut = True
                        client.sendall(waiting[: len(waiting) // 2] if self.cuts_inside else b"")
                        return


def _packets(data: bytes, most: int) -> tuple[bytes, bytes, int]:
    """Return at most so many whole packets, the rest, and how many more there may be."""
    at = 0
    while most and len(data) - at >= _HEADER:
        end = at + _HEADER + int.from_bytes(data[at : at + 3], "little")
        if end > len(data):
            break
        at, most = end, most - 1
    return data[:at], data[at:], most
