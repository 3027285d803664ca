"""Polls the health of relay, bootstrap pair and client during an attack."""

from __future__ import annotations

import contextlib
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from benchmarks.adversity.judge import Look, Who

EVERY_S = 0.2
TIMEOUT_S = 10.0


def fetch(url: str, timeout_s: float = TIMEOUT_S) -> tuple[int, str]:
    """GET a URL; status 0 without an answer in time."""
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as answer:
            return answer.status, answer.read().decode(errors="replace")
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode(errors="replace")
    except (OSError, ValueError) as error:
        return 0, repr(error)
    except Exception as error:  # what is cut off in the middle of an answer
        return 0, repr(error)


def figures_of(text: str) -> dict[str, float]:
    """Return the samples of a page of metrics by their name with labels."""
    found = {}
    for line in text.splitlines():
        name, _, value = line.rpartition(" ")
        if name.startswith("databus_"):
            with contextlib.suppress(ValueError):
                found[name] = float(value)
    return found


def look_at(who: Who, url: str) -> Look:
    """Request health, metrics and, from a relay, the data of its page."""
    begun_s = time.monotonic()
    status, health = fetch(f"{url}/health")
    figures = figures_of(fetch(f"{url}/metrics")[1]) if status else {}
    page: Mapping[str, Any] = {}
    if who == "relay" and status:
        page = _page_of(url)
    return Look(begun_s, who, status, health, figures, page)


def _page_of(url: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in ("physicalSources", "clients"):
        status, text = fetch(f"{url}/api/v1/{name}")
        if status == 200:
            found |= json.loads(text)
    return found


class Monitor:
    """Polls on a thread; a context manager.

    `watched` may be extended while it runs.
    """

    def __init__(self) -> None:
        self.looks: list[Look] = []
        self.watched: dict[Who, str] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Monitor:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(EVERY_S):
            for who, url in list(self.watched.items()):
                self.looks.append(look_at(who, url))
