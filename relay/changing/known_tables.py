"""The tables that patterns have found in earlier runs, from the files of captured sources."""

from __future__ import annotations

from pathlib import Path

from databus.conf.settings import PhysicalSourceSettings, RelaySettings
from databus.relay.captured_spans import SPANS_SUFFIX, load_first_scns
from databus.schemas.errors import RingError


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
    patterns, listed = settings.patterns, settings.source_names
    found = [name for name in known if name not in listed and patterns.may_match(name)]
    return settings.with_found(found)
