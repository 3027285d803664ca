"""Changes of what a relay captures while it runs: its physical sources, and their tables.

Ids are registered first, then the file of captured sources says since when each is captured, and
then capture of this one source connects again. The other physical sources notice nothing.
"""

from __future__ import annotations

import logging
import stat
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any

from databus.conf.loading import SettingsFile
from databus.conf.settings import PhysicalSourceSettings, RelaySettings
from databus.daemon.files import replace_file
from databus.daemon.log_setup import about
from databus.doctor.checks import Verdict
from databus.relay.catalog import check_tables, make_catalog
from databus.relay.changing.removed_sources import (
    note_removed,
    put_aside,
    refuse_files_of_before,
    refuse_other_database,
)
from databus.relay.sources.kind import check_source, source_ids
from databus.relay.sources.source import TablesFoundError
from databus.schemas.errors import (
    ControlRefusedError,
    RingError,
    SettingsError,
    UnknownSourceError,
)

if TYPE_CHECKING:
    from databus.relay.opening import SourceOpener
    from databus.relay.physical_source import PhysicalSource
    from databus.relay.relay import Relay

log = logging.getLogger(__name__)

_STOP_S = 5.0
_ANSWERED_S, _LOOK_S = 2.0, 0.005


class SourceChanges:
    """Changes the physical sources of one relay, and their tables. Thread-safe.

    What a person changes is written into the settings file first, so that it holds after a
    restart. The methods block for up to some seconds: never call them on the event loop.
    """

    def __init__(self, relay: Relay, opener: SourceOpener) -> None:
        self._relay, self._opener = relay, opener
        self.has_pair = False  # a bootstrap pair beside the relay, which keeps what it began with
        self._lock = RLock()
        for name, source in relay.physical_sources.items():
            source.capture.servers.take_in = partial(self.take_in, name)

    def take_in(self, name: str, new: TablesFoundError) -> None:
        """Capture tables that the patterns of a physical source have found.

        Called by its capture thread, which connects again then. Raises SettingsError, RingError.
        """
        tables = new.tables
        if not tables:
            return
        with self._lock:
            settings = self._relay.physical_sources[name].settings
            others = self._relay.catalog.ids.keys() - settings.source_names
            if taken := [table for table in tables if table in others]:
                raise SettingsError(
                    f"{name}: `sources` matches table {taken[0]}, and another physical source has "
                    f'a source of this name: leave it out here, with "!{taken[0]}"'
                )
            settings = settings.with_found(dict.fromkeys((*settings.found, *tables)))
            refuse_other_database(self._relay.settings.data_dir, settings)
            self._relist(name, settings, whole=tables if new.are_whole else ())
        scn = self._relay.physical_sources[name].ring.max_scn
        text = "%s: the patterns of its `sources` match %s: captured from here on"
        known = about(physical_source=name, scn=scn)
        log.info(text, name, ", ".join(tables), extra=known)

    def change(self, name: str, add: Sequence[str], remove: Sequence[str]) -> None:
        """Capture other tables of a physical source; the settings file has them from now on.

        `add` and `remove` are names and patterns as they are written there. Raises
        ControlRefusedError, and changes nothing, if that cannot be.
        """
        source = self._relay.physical_source(name)
        _refuse_lease(source.settings)
        with _refusing(), self._relay.control.resting(source), self._lock:
            file = self._file()
            if unknown := set(remove) - set(file.written(name)):
                listed = ", ".join(file.written(name))
                raise SettingsError(f"{name} does not list {min(unknown)}; it lists {listed}")
            text = file.listing(name, add, remove)
            settings = _named(self._built(file, text), name)
            patterns, names = settings.patterns, settings.source_names
            kept = [n for n in source.settings.found if n not in names and patterns.may_match(n)]
            settings = settings.with_found(kept)
            gone = set(source.settings.source_names) - set(settings.source_names)
            self._refuse_for_pair(gone)
            _refuse_unusable(settings, set(names) - set(source.settings.source_names))
            check_tables([settings], self._relay.registry)
            refuse_other_database(self._relay.settings.data_dir, settings)
            with self._written(file, text):
                self._relist(name, settings, ends_requests=True)
                note_removed(self._relay.settings.data_dir, source.settings, gone)
        source.notifier.notify_all()

    def add(self, values: dict[str, Any]) -> str:
        """Capture one more physical source, and return its name; the settings file has it then.

        Raises ControlRefusedError, and changes nothing, if that cannot be.
        """
        with self._lock, _refusing():
            self._refuse_strangers()
            file = self._file()
            text = file.adding(values)
            built = self._built(file, text)
            settings, folder = built.physical_sources[-1], built.data_dir
            if settings.capture_lease_s is not None:
                raise SettingsError("capture_lease_s: it can only be set before the relay starts")
            refuse_files_of_before(folder, settings)
            refuse_other_database(folder, settings)
            _refuse_unusable(settings, settings.source_names)
            relay = self._relay
            listed = (*relay.settings.physical_sources, settings)
            catalog = make_catalog(listed, relay.registry.sources(), source_ids)
            check_tables([settings], relay.registry)
            before = relay.catalog.copy()
            with self._written(file, text), ExitStack() as files:
                relay.registry.add_sources(catalog.ids)
                relay.catalog.adopt(catalog)
                files.callback(relay.catalog.adopt, before)
                with ExitStack() as opened:
                    source = self._opener.open(settings, None, opened)
                    relay.own(opened)
                files.pop_all()
                self._enter(source, listed)
            return settings.name

    def remove(self, name: str) -> Path:
        """Stop capturing a physical source, and put its files aside; return their folder.

        Requests for its sources are refused from now on. Its files close when the relay stops.
        Raises ControlRefusedError, and changes nothing, if that cannot be.
        """
        relay, folder = self._relay, self._relay.settings.data_dir
        source = relay.physical_source(name)
        _refuse_lease(source.settings)
        if relay.settings.max_scn.store != "file":
            raise ControlRefusedError(
                "max_scn.store keeps the places of all in one file: take the physical source out "
                "of the settings file, and restart the relay"
            )
        with _refusing(), relay.control.ending(source), self._lock:
            self._refuse_for_pair(source.settings.source_names)
            file = self._file()
            text = file.removing(name)
            self._built(file, text)
            with self._written(file, text):
                listed = tuple(p for p in relay.settings.physical_sources if p.name != name)
                note_removed(folder, source.settings, source.settings.source_names)
                relay.settings = relay.settings.model_copy(update={"physical_sources": listed})
                others = {n: s for n, s in relay.physical_sources.items() if n != name}
                relay.physical_sources = others
                relay.catalog.adopt(make_catalog(listed, relay.registry.sources()))
                relay.ring_watch.remove(name)
                self._opener.forget(name)
            source.stop_beside(_STOP_S)
            source.notifier.notify_all()
            try:
                return put_aside(folder, name)
            except OSError as error:  # one of its name is refused while they are there
                log.warning("%s: its files stay where they are: %s", name, error)
                return folder

    def _refuse_for_pair(self, gone: Collection[str]) -> None:
        """Raise SettingsError if a pair beside the relay would lose what it reads."""
        if gone and self.has_pair:
            raise SettingsError(
                f"the bootstrap pair of this process reads {', '.join(sorted(gone))}: take what is "
                "to go out of the settings file, and restart the process"
            )

    def _refuse_strangers(self) -> None:
        """Raise SettingsError for a relay that everybody on its machine may give orders."""
        if not self._relay.settings.http.has_tokens:
            raise SettingsError(
                "a physical source names files that the relay reads and writes, so adding one "
                "needs an administrator's token: set http.admin_tokens_file, or add it to the "
                "settings file and restart"
            )

    def _enter(self, source: PhysicalSource, listed: tuple[PhysicalSourceSettings, ...]) -> None:
        """Show and start one more physical source."""
        relay, name = self._relay, source.name
        source.capture.servers.take_in = partial(self.take_in, name)
        relay.monitor.add(name)
        relay.ring_watch.add(name, relay.settings.data_dir / f"{name}.ring")
        relay.settings = relay.settings.model_copy(update={"physical_sources": listed})
        relay.physical_sources = {**relay.physical_sources, name: source}
        source.start()

    def _relist(
        self,
        name: str,
        settings: PhysicalSourceSettings,
        whole: Collection[str] = (),
        *,
        ends_requests: bool = False,
    ) -> None:
        """Capture other tables of a physical source from its next connection on.

        `whole` have all their rows from then on. Nobody has a position of one that is new, so
        nobody is refused for it. With `ends_requests`, those that are held are answered first:
        one for all sources would be sent rows of others. Capture must rest meanwhile.
        """
        relay, source = self._relay, self._relay.physical_sources[name]
        sources = relay.settings.physical_sources
        listed = tuple(settings if one.name == name else one for one in sources)
        catalog = make_catalog(listed, relay.registry.sources())
        check_tables(listed, relay.registry)
        relay.registry.add_sources(catalog.ids)
        if ends_requests:
            relay.catalog.adopt(catalog)
            source.notifier.notify_all()
            _wait_until(lambda: source.notifier.waiting == 0)
        source.spans.relist(catalog.src_ids_of(name), catalog.new.intersection(whole))
        relay.catalog.adopt(catalog)
        self._opener.names_of(settings).adopt(settings.names)
        assert source.encoder is not None
        source.encoder.relist(catalog.src_ids_of(name))
        source.capture.servers.relist(settings)
        relay.settings = relay.settings.model_copy(update={"physical_sources": listed})
        relay.physical_sources[name] = replace(source, settings=settings)

    def _file(self) -> SettingsFile:
        """Return the settings file, as it was when the relay started; raise SettingsError."""
        running = self._relay.settings
        if running.serving_processes:
            raise SettingsError(
                "with serving_processes, which know only the sources of their start, change the "
                "settings file and restart the relay"
            )
        path = running.physical_sources[0].file
        if path is None:
            raise SettingsError("this relay has no settings file that could be changed")
        file = SettingsFile(path)
        now = file.build(file.text, RelaySettings).physical_sources
        if [one.model_dump() for one in now] != [
            one.model_dump() for one in running.physical_sources
        ]:
            raise SettingsError(
                f"{file.path} has other physical sources than the relay: it was changed since; "
                "restart the relay, and then try again"
            )
        return file

    def _built(self, file: SettingsFile, text: str) -> RelaySettings:
        """Return the settings of a new text, which their kinds take; raise SettingsError."""
        built = file.build(text, RelaySettings)
        for source in built.physical_sources:
            for uri in source.uris:
                self._relay.open_source(source.at(uri)).close()
        return built

    @contextmanager
    def _written(self, file: SettingsFile, text: str) -> Iterator[None]:
        """Write a new text; put the one before back if what follows fails."""
        _write(file.path, text)
        try:
            yield
        except BaseException:
            _write(file.path, file.text)
            raise


def _refuse_lease(settings: PhysicalSourceSettings) -> None:
    """Raise ControlRefusedError for a source that several relays capture in turn."""
    if settings.capture_lease_s is not None:
        raise ControlRefusedError(
            f"{settings.name}: with capture_lease_s its relays must have the same list: change the "
            "settings file of each, and restart them one after the other"
        )


def _refuse_unusable(settings: PhysicalSourceSettings, sources: Collection[str]) -> None:
    """Raise SettingsError for tables that cannot be captured, or if that cannot be found out now.

    One of them would stop the capture of all.
    """
    if sources:
        checks = check_source(settings.only(sources), time.time(), reads_log=False, newest_scn=None)
        if problems := [one.text for one in checks if one.verdict is Verdict.ERROR]:
            raise SettingsError("; ".join(problems))


def _wait_until(is_so: Callable[[], bool]) -> None:
    """Wait for something that soon is so, if the event loop runs."""
    end = time.monotonic() + _ANSWERED_S
    while not is_so() and time.monotonic() < end:
        time.sleep(_LOOK_S)


def _named(settings: RelaySettings, name: str) -> PhysicalSourceSettings:
    return next(one for one in settings.physical_sources if one.name == name)


def _write(path: Path, text: str) -> None:
    try:
        replace_file(path, text.encode(), stat.S_IMODE(path.stat().st_mode))
    except OSError as error:
        raise SettingsError(
            f"{path} cannot be written: {error.strerror}; change it where it comes from, and "
            "restart the relay"
        ) from error


@contextmanager
def _refusing() -> Iterator[None]:
    """Raise ControlRefusedError for what the settings or the files do not allow."""
    try:
        yield
    except (SettingsError, RingError, UnknownSourceError) as error:
        raise ControlRefusedError(f"nothing was changed: {error}") from error
