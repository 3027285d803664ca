"""The HTTP server of a process that runs sinks, and the file that says where it is."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from databus.client.monitoring.loop_server import LoopServer
from databus.client.puller.loop_thread import LoopThread
from databus.client.sinks.running.feed import SinkState
from databus.client.sinks.serving.api import endpoints
from databus.client.sinks.serving.metrics import make_metrics
from databus.client.sinks.serving.positions import LOCK
from databus.client.sinks.serving.process import SinkProcess
from databus.client.sinks.serving.views import problems_of, sinks_view
from databus.conf.sink_settings import SinksSettings
from databus.daemon.files import holder_of, replace_file
from databus.daemon.guarded_files import content_of
from databus.daemon.http.openapi import api_routes
from databus.daemon.service import Health, Service
from databus.schemas.errors import SettingsError

log = logging.getLogger(__name__)

NAME = "address.json"
_WORDS = {SinkState.STOPPED: "error", SinkState.FAILING: "retrying"}


def make_service(process: SinkProcess, settings: SinksSettings) -> Service:
    """Return the server of sinks, which neither starts nor ends them."""
    http, folder = settings.http, settings.data_dir
    return Service(
        name="sinks",
        http=http,
        routes=api_routes(endpoints(process), http),
        metrics=make_metrics(process),
        health=lambda: health_of(process),
        start=lambda: None,
        let_go=lambda: None,  # no request is held
        stop=lambda _: (folder / NAME).unlink(missing_ok=True),
        entered=lambda url: _write_address(folder, url),
    )


@contextmanager
def served(process: SinkProcess, settings: SinksSettings) -> Iterator[None]:
    """Serve within the block, on a thread; raise SettingsError if the port cannot be bound."""
    loop = LoopThread("databus-sinks-http")
    loop.start()
    try:
        server = LoopServer(make_service(process, settings), loop)
        server.start()
        yield
    finally:
        loop.stop()


def health_of(process: SinkProcess) -> Health:
    """Return the health: no sink fails. One that somebody has paused is well."""
    shown = sinks_view(process).sinks
    states = {one.name: one.state for one in shown}
    problems = {one.name: found for one in shown if (found := problems_of(one))}
    words = [word for state, word in _WORDS.items() if state in states.values()]
    details = {"sinks": states, "problems": problems}
    return Health(not words, details, next(iter(words), "error"))


def address_of(folder: Path) -> str:
    """Return the URL of the process that runs the sinks of a folder; "" if none does.

    Raises SettingsError if there is one, and its URL is not known.
    """
    process = holder_of(folder / LOCK)
    if not process:
        return ""
    with suppress(OSError, ValueError, TypeError, KeyError):
        found = json.loads(content_of(folder / NAME) or b"")
        if str(found["process"]) == process:
            return str(found["url"])
    raise SettingsError(
        f"process {process} uses {folder} and serves nothing: it is starting or ending; "
        "try again, or look at its log"
    )


def _write_address(folder: Path, url: str) -> None:
    try:
        text = json.dumps({"process": os.getpid(), "url": url}) + "\n"
        replace_file(folder / NAME, text.encode())
    except OSError as error:
        # Sinks that write are worth more than commands that reach them.
        log.error("%s cannot be written, so commands do not find %s: %s", folder / NAME, url, error)
