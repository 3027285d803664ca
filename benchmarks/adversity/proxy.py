"""A proxy between relay and database: cuts, swallows, and tampers with log packets.

A `Tamper` gets each packet of a dump on its way to the relay and returns what is sent in its
place. Dumps that only search the log are left alone. It tampers once: the next connection is an
honest one, as after a bad cable. One that raises an OSError ends the connection, after what it has
said until then.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from collections.abc import Callable, Iterable
from typing import Self

from databus.demo.private_mariadb import HOST

# The first packet of a command, and where its flags are: COM_BINLOG_DUMP, …_GTID.
_DUMPS = {b"\0\x12": 9, b"\0\x1e": 5}
_ENDS = 1  # the flag of a dump that ends where the log ends: a search
_HEADER = 4
_POLL_S = 0.1
# Returns the packets that replace a packet of the dump.
Tamper = Callable[[bytes], Iterable[bytes]]


class WireProxy:
    """Forwards everything unless told otherwise; a context manager.

    `target` may be changed: another server at the same address, from the next connection on.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self.is_swallowing = False  # drop all data, but keep connections open
        self.is_refusing = False  # refuse new connections
        self.tamper: Tamper | None = None  # of the next dump that follows the log
        self._is_closed = False
        self._listener = socket.create_server((HOST, 0), backlog=64)
        self.port: int = self._listener.getsockname()[1]
        self._links: set[socket.socket] = set()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._is_closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self.cut()
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def cut(self) -> None:
        """Close all connections."""
        for link in list(self._links):
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while not self._is_closed:
                client = self._listener.accept()[0]
                if self.is_refusing:
                    client.close()
                    continue
                thread = threading.Thread(target=self._serve, args=(client,), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            server = socket.create_connection((HOST, self.target))
            with server:
                self._links |= {client, server}
                try:
                    self._pass_on(client, server)
                finally:
                    self._links -= {client, server}

    def _tamper_of_dump(self) -> Tamper | None:
        tamper, self.tamper = self.tamper, None
        return tamper

    def _pass_on(self, client: socket.socket, server: socket.socket) -> None:
        tamper: Tamper | None = None
        waiting = b""
        # Not `select`: an attack may have more than a thousand files open.
        both = selectors.PollSelector()
        for link in (client, server):
            both.register(link, selectors.EVENT_READ)
        while not self._is_closed:
            ready = both.select(_POLL_S)
            if self.is_swallowing:
                # Neither side learns that the other one is gone: the network is down.
                threading.Event().wait(_POLL_S)
                continue
            for key, _ in ready:
                sender = client if key.fileobj is client else server
                data = sender.recv(1 << 16)
                if not data:
                    return
                if sender is client:
                    if _follows(data):
                        tamper = self._tamper_of_dump()
                    server.sendall(data)
                elif tamper is None:
                    client.sendall(data)
                else:
                    packets, waiting = split_packets(waiting + data)
                    send_tampered(client, packets, tamper)


def _follows(command: bytes) -> bool:
    """Return whether a command asks for a dump that waits for more at the log's end."""
    at = _DUMPS.get(command[3:5])
    return at is not None and not command[at] & _ENDS


def send_tampered(client: socket.socket, packets: list[bytes], tamper: Tamper) -> None:
    """Send what `tamper` returns for packets, also if it then ends the connection by an OSError."""
    sent: list[bytes] = []
    try:
        for packet in packets:
            for part in tamper(packet):
                sent.append(part)  # noqa: PERF402 - what came before an error is sent, too
    finally:
        client.sendall(b"".join(sent))


def split_packets(data: bytes) -> tuple[list[bytes], bytes]:
    """Return the whole packets, and the beginning of the next one."""
    found, at = [], 0
    while len(data) - at >= _HEADER:
        end = at + _HEADER + int.from_bytes(data[at : at + 3], "little")
        if end > len(data):
            break
        found.append(data[at:end])
        at = end
    return found, data[at:]
