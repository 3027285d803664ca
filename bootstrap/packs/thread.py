"""Packs a store's tables in the background, with a small share of a core."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import closing

from databus.bootstrap.packs.building import new_decoder
from databus.bootstrap.packs.packer import Packer
from databus.bootstrap.seeder.job import store_path
from databus.bootstrap.store.file import WriteLease
from databus.bootstrap.store.store import Store
from databus.conf.settings import BootstrapSettings, PhysicalSourceSettings
from databus.daemon.faults import trace_of
from databus.daemon.log_setup import about

log = logging.getLogger(__name__)

LOOK_S = 1.0
SHARE = 0.1  # of the time it works at most, so that the producer hardly notices


class PackingThread:
    """Packs the tables of one store until it is stopped. Methods may be called from any thread."""

    def __init__(
        self,
        settings: BootstrapSettings,
        physical: PhysicalSourceSettings,
        *,
        lease: WriteLease | None = None,
    ) -> None:
        """Write under a `lease`, if there is one."""
        self._path = store_path(settings, physical)
        self._most_bytes = settings.packed_bytes
        self._name = physical.name
        self._lease = lease
        self._stop = threading.Event()
        self._resumed = threading.Event()
        self._resumed.set()
        self._problem = ""
        self._thread = threading.Thread(
            target=self._run, name=f"packing-{physical.name}", daemon=True
        )

    @property
    def problem(self) -> str:
        """Why it does not work; rows are read one by one then."""
        return self._problem

    @property
    def is_paused(self) -> bool:
        """Whether it is paused."""
        return not self._resumed.is_set()

    def pause(self) -> None:
        """Pause after the current step, until `resume`."""
        self._resumed.clear()

    def resume(self) -> None:
        """Continue after `pause`."""
        self._resumed.set()

    def start(self) -> None:
        """Start the thread. Call it once."""
        self._thread.start()

    def stop(self, timeout_s: float | None = None) -> bool:
        """Stop the thread after the current step; return whether it stopped in time."""
        self._stop.set()
        self._resumed.set()
        if self._thread.ident is None:
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        if new_decoder is None:
            text = "%s: tables are not packed for Spark: the decoder of columns was not compiled"
            log.info(text, self._name, extra=about(physical_source=self._name))
            return
        while not self._stop.is_set():
            try:
                # Not made here: the producer does that.
                if self._path.exists():
                    with closing(Store.open(self._path, lease=self._lease)) as store:
                        self._work(Packer(store, self._most_bytes))
            except Exception as error:
                # A thread has no caller to raise to.
                text = "%s: packing of tables failed; it is tried again: %s"
                known = about(physical_source=self._name)
                problem = str(error) or repr(error)
                if problem != self._problem:  # said once
                    log.error(text, self._name, error, exc_info=trace_of(error), extra=known)
                self._problem = problem
            self._stop.wait(LOOK_S)

    def _work(self, packer: Packer) -> None:
        while not self._stop.is_set():
            self._resumed.wait()
            began_s = time.monotonic()
            is_any = packer.step()
            self._problem = ""
            # A look at many tables takes time, too.
            rest_s = (time.monotonic() - began_s) * (1 / SHARE - 1)
            self._stop.wait(rest_s if is_any else max(rest_s, LOOK_S))
