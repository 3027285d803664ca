"""What a token that is for certain sources may have of a request about several."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from databus.daemon.access import ReadLimit
from databus.relay.catalog import Catalog
from databus.relay.ring.selection import Selection
from databus.relay.serving.databus.parameters import StreamRequest


def check_ids(limit: ReadLimit | None, src_ids: Iterable[int], catalog: Catalog) -> None:
    """Raise ForbiddenError unless all sources with these ids may be read."""
    if limit is not None:
        limit.check(map(catalog.name_of, src_ids))


def readable(limit: ReadLimit | None, names: Iterable[str]) -> list[str]:
    """Return the sources that may be read."""
    return [name for name in names if limit is None or limit.may_read(name)]


def limited_request(
    request: StreamRequest, limit: ReadLimit | None, catalog: Catalog
) -> StreamRequest:
    """Return a request with its selections limited; raises ForbiddenError."""
    if limit is None:
        return request
    selections = tuple(limited(one, limit, catalog) for one in request.selections)
    return replace(request, selections=selections)


def limited(selection: Selection, limit: ReadLimit | None, catalog: Catalog) -> Selection:
    """Return a selection without statements on other sources; raises ForbiddenError.

    Its sources are listed: one that is added while the request lasts is not among them.
    """
    if limit is None:
        return selection
    src_ids = selection.src_ids
    if src_ids is None:
        src_ids = frozenset(catalog.src_ids_of(selection.physical_source).values())
    check_ids(limit, src_ids, catalog)
    return replace(selection, src_ids=src_ids, readable=limit.patterns)
