"""The sockets on which a relay with serving processes is reached."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack
from pathlib import Path

from databus.conf.settings import HttpSettings
from databus.daemon.files import PRIVATE
from databus.daemon.http.server import explain_bind, url_of
from databus.relay.serving_processes.passing_on import SOCKET, socket_address
from databus.schemas.errors import SettingsError

_BACKLOG = 256


def bind_each(settings: HttpSettings, count: int) -> tuple[str, list[socket.socket]]:
    """Return the URL of the settings' address, and sockets that listen there.

    The system divides new connections among them. Raises SettingsError if anybody else listens
    there, also one that would share the port.
    """
    try:
        family, *_, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with ExitStack() as opened:
            # Without SO_REUSEPORT: it fails where others share the port.
            with socket.socket(family) as alone:
                alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                alone.bind(address)
                place = alone.getsockname()[:2]
            sockets = []
            for _ in range(count):
                sock = socket.create_server(place, family=family, backlog=_BACKLOG, reuse_port=True)
                sockets.append(opened.enter_context(sock))
            opened.pop_all()
    except OSError as error:
        raise SettingsError(explain_bind(settings, error)) from error
    return url_of(sockets[0], settings), sockets


def bind_private(folder: Path) -> socket.socket:
    """Return a socket in the data folder that listens there; only its user may open it.

    The folder's lock is held, so what lies there is of a relay that has ended.
    """
    fd, address = socket_address(folder)
    try:
        (folder / SOCKET).unlink(missing_ok=True)
        sock = socket.socket(socket.AF_UNIX)
        try:
            # Before it is bound, so that it is private from the beginning.
            os.fchmod(sock.fileno(), PRIVATE)
            sock.bind(address)
            sock.listen(_BACKLOG)
            sock.setblocking(False)
        except BaseException:
            sock.close()
            raise
    except OSError as error:
        raise SettingsError(f"{folder / SOCKET} cannot be bound: {error}") from error
    finally:
        os.close(fd)
    return sock
