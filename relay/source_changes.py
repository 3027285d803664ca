"""Changes of what a relay captures while it runs: the tables of its physical sources.

Ids are registered first, then the file of captured sources says since when each is captured, and
then capture of this one source connects again. The other physical sources notice nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING

from databus.conf.settings import PhysicalSourceSettings, RelaySettings
from databus.daemon.log_setup import about
from databus.relay.captured_spans import SPANS_SUFFIX, load_first_scns
from databus.relay.catalog import check_tables, make_catalog
from databus.schemas.errors import RingError, SettingsError

if TYPE_CHECKING:
    from databus.relay.opening import SourceOpener
    from databus.relay.relay import Relay

log = logging.getLogger(__name__)


def with_known_tables(settings: RelaySettings) -> RelaySettings:
    """Return the settings with the tables that their patterns have found before."""
    sources = [_with_known(one, settings.data_dir) for one in settings.physical_sources]
    return settings.model_copy(update={"physical_sources": tuple(sources)})


def _with_known(settings: PhysicalSourceSettings, folder: Path) -> PhysicalSourceSettings:
    path = folder / f"{settings.name}{SPANS_SUFFIX}"
    if not settings.patterns or not path.exists():
        return settings
    if not (folder / f"{settings.name}.ring").exists():
        return settings  # of a ring that was removed, perhaps of another database
    try:
        known = load_first_scns(path)
    except RingError:
        return settings  # the ring's opening reports it; the tables are found again
    exact, folded = settings.patterns, settings.patterns.folding_case()
    listed = settings.source_names
    found = [n for n in known if n not in listed and (exact.match(n) or folded.match(n))]
    return settings.with_found(found)


class SourceChanges:
    """Changes the sources of one relay. Thread-safe."""

    def __init__(self, relay: Relay, opener: SourceOpener) -> None:
        self._relay, self._opener = relay, opener
        self._lock = RLock()
        for name, source in relay.physical_sources.items():
            source.capture.servers.take_in = partial(self.take_in, name)

    def take_in(self, name: str, tables: Sequence[str]) -> None:
        """Capture tables that the patterns of a physical source have found.

        Called by its capture thread, which connects again then. Raises SettingsError, RingError.
        """
        with self._lock:
            settings = self._relay.physical_sources[name].settings
            others = self._relay.catalog.ids.keys() - settings.source_names
            if taken := [table for table in tables if table in others]:
                raise SettingsError(
                    f"{name}: `sources` matches table {taken[0]}, and another physical source has "
                    f'a source of this name: leave it out here, with "!{taken[0]}"'
                )
            self._relist(name, settings.with_found(dict.fromkeys((*settings.found, *tables))))
        scn = self._relay.physical_sources[name].ring.max_scn
        text = "%s: the patterns of its `sources` match %s: captured from here on"
        known = about(physical_source=name, scn=scn)
        log.info(text, name, ", ".join(tables), extra=known)

    def _relist(self, name: str, settings: PhysicalSourceSettings) -> None:
        """Capture other tables of a physical source from its next connection on."""
        relay, source = self._relay, self._relay.physical_sources[name]
        sources = relay.settings.physical_sources
        listed = tuple(settings if one.name == name else one for one in sources)
        catalog = make_catalog(listed, relay.registry.sources())
        check_tables(listed, relay.registry)
        relay.registry.add_sources(catalog.ids)
        source.spans.relist(catalog.src_ids_of(name), catalog.new)
        relay.catalog.adopt(catalog)
        self._opener.names_of(settings).adopt(settings.names)
        assert source.encoder is not None
        source.encoder.relist(catalog.src_ids_of(name))
        source.capture.servers.relist(settings)
        relay.settings = relay.settings.model_copy(update={"physical_sources": listed})
        relay.physical_sources[name] = replace(source, settings=settings)
