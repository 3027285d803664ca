"""TLS on the port that several processes share."""

from __future__ import annotations

import http.client
import os
import shutil
import signal
import ssl
from pathlib import Path

import pytest

from databus.conf.settings import ServerAccessSettings
from databus.daemon.tls import client_context
from tests import PATIENCE_S
from tests.databus.daemon.certificates import make_certificates
from tests.promises.running import (
    Remembering,
    RunningRelay,
    Shop,
    consuming,
    running,
    wait_until,
)
from tests.promises.serving.processes import KeptConnection, rows_in, serving_pids, stream_path


def test_every_process_speaks_tls_and_reads_a_new_certificate(shop: Shop, tmp_path: Path) -> None:
    old, new = (make_certificates(tmp_path / name) for name in ("old", "new"))
    relay = RunningRelay(
        tmp_path, shop.settings(), http=old.settings, tls_ca=old.ca, serving_processes=2
    )
    with running(relay):
        relay.start()
        wait_until(lambda: len(serving_pids(relay)) == 2, "both processes", relay.tell)
        shop.insert(*range(20))
        wait_until(lambda: rows_in(relay) == 20, "the rows", relay.tell)
        kept: dict[int, KeptConnection] = {}
        while len(kept) < 2:
            connection = KeptConnection(relay)
            assert connection.get(stream_path()).status == 200
            assert connection.get("/sources").status == 200  # passed on
            if (pid := connection.process(relay)) in kept:
                connection.close()
            else:
                kept[pid] = connection
        seen = Remembering()
        access = ServerAccessSettings(tls_ca=old.ca)
        with consuming([relay.url], ["shop.orders"], seen, access=access):
            shop.insert(100)
            wait_until(lambda: len(seen.events) == 21, "all rows", relay.tell)
        with pytest.raises((http.client.HTTPException, OSError)):
            plain(relay)
        shutil.copy(new.cert, old.cert)
        shutil.copy(new.key, old.key)
        os.kill(relay.child.pid, signal.SIGHUP)
        wait_until(lambda: all(is_known(relay, new.ca) for _ in range(8)), "the new certificate")
        assert not is_known(relay, old.ca)
        for connection in kept.values():  # what was open stays
            assert connection.get(stream_path()).status == 200
            connection.close()


def plain(relay: RunningRelay) -> None:
    """Ask without TLS."""
    connection = http.client.HTTPConnection("127.0.0.1", relay.port, timeout=PATIENCE_S)
    try:
        connection.request("GET", "/sources")
        connection.getresponse()
    finally:
        connection.close()


def is_known(relay: RunningRelay, ca: Path) -> bool:
    """Return whether the certificate of whoever answers is signed by an authority."""
    connection = http.client.HTTPSConnection(
        "127.0.0.1", relay.port, timeout=PATIENCE_S, context=client_context(ca)
    )
    try:
        connection.connect()
    except ssl.SSLCertVerificationError:
        return False
    finally:
        connection.close()
    return True
