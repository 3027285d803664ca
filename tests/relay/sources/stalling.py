"""A server that takes a connection and never says a word."""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path

from databus.conf.settings import PhysicalSourceSettings


class StalledServer:
    """Accepts connections until it is closed; a context manager."""

    def __init__(self) -> None:
        self.was_asked = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._accepted: list[socket.socket] = []
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> StalledServer:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        for link in self._accepted:
            link.close()

    def settings(self, folder: Path) -> PhysicalSourceSettings:
        """Return settings of a source of this server."""
        (folder / "password").write_text("x")
        return PhysicalSourceSettings(
            name="shop",
            uri=f"mysql://u@127.0.0.1:{self.port}",
            password_file=folder / "password",
            sources=("d.t",),
        )

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._accepted.append(self._listener.accept()[0])
                self.was_asked.set()
