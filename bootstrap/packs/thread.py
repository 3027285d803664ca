"""Packs a store's tables in the background, with a small share of a core."""

from __future__ import annotations

import logging
import time
from contextlib import closing

from databus.bootstrap.background import PausableThread
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


class PackingThread(PausableThread):
    """Packs the tables of one store. With a problem, rows are read one by one."""

    def __init__(
        self,
        settings: BootstrapSettings,
        physical: PhysicalSourceSettings,
        *,
        lease: WriteLease | None = None,
    ) -> None:
        """Write under a `lease`, if there is one."""
        super().__init__(f"packing-{physical.name}")
        self._path = store_path(settings, physical)
        self._most_bytes = settings.packed_bytes
        self._name = physical.name
        self._lease = lease

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
