"""What the test process holds open: threads, children, file descriptors, shared mappings.

Two pictures are compared, one from before a test and one from after it; what
only the second has was left behind by the test. Fixtures of a wider scope are
set up before the first picture, so what they hold is in both.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing import resource_tracker
from pathlib import Path

import psutil

# Mapped by the C library when it needs them, once a process.
_SYSTEM_FOLDERS = ("/usr/", "/lib/")
_POLL_S = 0.02


@dataclass(frozen=True)
class Holdings:
    """Each kind as a map from what it is told apart by to words for a person."""

    threads: Mapping[int, str]
    children: Mapping[int, str]
    descriptors: Mapping[tuple[int, str], str]
    mappings: Mapping[str, str]

    def beyond(self, before: Holdings) -> list[str]:
        """Return what is held now and was not before, in words."""
        kinds = ("threads", "children", "descriptors", "mappings")
        new = {kind: getattr(self, kind).keys() - getattr(before, kind).keys() for kind in kinds}
        if new["descriptors"]:
            to_jvm = _sockets_to_the_jvm()  # seldom: it takes long
            new["descriptors"] = {key for key in new["descriptors"] if key[0] not in to_jvm}
        return [
            f"{kind[:-1] if kind != 'children' else 'child process'} {words}"
            for kind in kinds
            for key, words in getattr(self, kind).items()
            if key in new[kind]
        ]


def take_stock() -> Holdings:
    """Look at what this process holds now."""
    tracker = resource_tracker._resource_tracker  # one a process, for its whole life
    return Holdings(
        threads={id(thread): repr(thread) for thread in threading.enumerate()},
        children=_children(without=getattr(tracker, "_pid", None)),
        descriptors=_descriptors(without=getattr(tracker, "_fd", None)),
        mappings=_shared_mappings(),
    )


def what_is_left(before: Holdings, patience_s: float) -> list[str]:
    """Return what a test left behind; waits a while for what is just ending."""
    left = take_stock().beyond(before)
    deadline = time.monotonic() + patience_s
    while left:
        # Each time: what a thread held until just now may be a cycle of its own since.
        gc.collect()
        left = take_stock().beyond(before)
        if time.monotonic() >= deadline:
            break
        threading.Event().wait(_POLL_S)
    return left


def _children(without: int | None) -> dict[int, str]:
    # Of each thread, by the system's own list: psutil would look at every process there is.
    pids: set[int] = set()
    for task in os.listdir("/proc/self/task"):  # noqa: PTH208 - the numbers are all that is wanted
        with contextlib.suppress(OSError):  # it has ended
            pids.update(map(int, Path(f"/proc/self/task/{task}/children").read_bytes().split()))
    found = {}
    for pid in pids - {without}:
        with contextlib.suppress(psutil.NoSuchProcess):
            found[pid] = f"{pid} ({psutil.Process(pid).status()})"
    return found


def _descriptors(without: int | None) -> dict[tuple[int, str], str]:
    found = {}
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - the numbers are all that is wanted
        try:
            target = str(Path(f"/proc/self/fd/{name}").readlink())
        except FileNotFoundError:  # the listing's own
            continue
        if int(name) != without:
            found[int(name), target] = f"{name} -> {target}"
    return found


def _sockets_to_the_jvm() -> set[int]:
    """Return the connections of a Spark driver in this process to its JVM.

    Python opens one whenever a thread or the garbage collector has something to tell, also during
    tests that come later.
    """
    pyspark = sys.modules.get("pyspark")
    gateway = None if pyspark is None else pyspark.SparkContext._gateway
    if gateway is None:
        return set()
    ports, calls_back = {gateway.gateway_parameters.port}, gateway.get_callback_server()
    if calls_back is not None:
        ports.add(calls_back.get_listening_port())
    return {
        one.fd
        for one in psutil.Process().net_connections("tcp")
        if {end.port for end in (one.laddr, one.raddr) if end} & ports
    }


def _shared_mappings() -> dict[str, str]:
    found = {}
    # Of a thousand lines, before and after each test: no pattern is as fast as this.
    for line in Path("/proc/self/maps").read_bytes().splitlines():
        span, permissions, rest = line.split(b" ", 2)
        if permissions.endswith(b"s"):
            *_, name = rest.split(b" ", 3)  # after an offset, a device and an inode
            words = os.fsdecode(name.strip()) or "anonymous"
            if not words.startswith(_SYSTEM_FOLDERS):
                found[f"{span.decode()} {words}"] = words
    return found
