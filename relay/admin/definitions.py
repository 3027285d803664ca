"""The definitions of a source's tables over time, as a relay that stands by copies them."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from databus.daemon.http.openapi import ApiModel, Call, Scn
from databus.relay.admin.page_parts.admins import check_admin
from databus.relay.capture.standby.definitions import read_definitions
from databus.relay.physical_source import PhysicalSource
from databus.relay.sources.kind import history_path


class DefinitionsQuery(ApiModel):
    """What the caller has."""

    have: str = Field(default="", max_length=100, description="The `tag` of its copy")


class DefinitionsView(ApiModel):
    """The definitions, complete up to an SCN."""

    physical_source: str
    scn: Scn | None = Field(description="What is defined up to here is in the text; None = nothing")
    tag: str = Field(description="Changes with the text")
    text: str | None = Field(description="One line of JSON a record; None = as the caller has it")


def definitions_view(source: PhysicalSource, data_dir: Path, call: Call) -> DefinitionsView:
    """Return the definitions of a physical source's tables. Reads a file.

    They have the names, labels and defaults of columns that `columns` protects, too: then they are
    for admins. Raises ForbiddenError.
    """
    have: str = call.query.have
    if source.settings.columns:
        check_admin(call.peer)
    path = history_path(source.settings, data_dir)
    found = read_definitions(path, lambda: source.ring.max_scn, have)
    return DefinitionsView(
        physical_source=source.name,
        scn=None if found.scn < 0 else found.scn,
        tag=found.tag,
        text=found.text,
    )
