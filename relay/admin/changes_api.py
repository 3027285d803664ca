"""Endpoints that change what is captured: physical sources, and the tables of one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from pydantic import Field

from databus.daemon.access import Role
from databus.daemon.http.openapi import ApiModel, Call, Endpoint
from databus.relay.relay import Relay

_NO_SUCH = {404: "Unknown physical source", 503: "Its files cannot be used"}
_REFUSED = {409: "It cannot be; the message says why, and nothing was changed"}
_MOST = 1000


class NewSource(ApiModel):
    """A physical source to be captured from now on."""

    settings: dict[str, Any] = Field(
        description="Its settings by their names in the file: `name`, `uri`, `sources` and others"
    )


class ChangedTables(ApiModel):
    """Changes of what a physical source captures."""

    add: list[str] = Field(
        default=[], max_length=_MOST, description="Names of tables, and patterns such as `shop.*`"
    )
    remove: list[str] = Field(
        default=[], max_length=_MOST, description="Those to take out, as they are listed"
    )


class Listing(ApiModel):
    """What a physical source captures, and where that comes from."""

    name: str
    file: str = Field(description="The settings file, which has it; empty without one")
    listed: list[str] = Field(description="Names that are listed")
    patterns: list[str] = Field(description="Patterns that are listed")
    found: list[str] = Field(description="The tables that patterns have found")


class RemovedSource(ApiModel):
    """A physical source that is captured no more."""

    name: str
    files: str = Field(description="Folder where its files were put; nobody reads them")


class ChangesApi:
    """The endpoints of one relay."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay

    def endpoints(self, root: str) -> Sequence[Endpoint]:
        """Return the endpoints."""
        one = f"{root}/physicalSources/{{name}}"
        return (
            Endpoint(
                "GET",
                f"{one}/sources",
                "What a physical source captures, by name and by pattern",
                Listing,
                self.listing,
                errors=_NO_SUCH,
            ),
            Endpoint(
                "POST",
                f"{one}/sources",
                "Add and remove tables and patterns, durably; the others go on",
                Listing,
                self.change,
                role=Role.ADMIN,
                body=ChangedTables,
                errors=_NO_SUCH | _REFUSED,
            ),
            Endpoint(
                "POST",
                f"{root}/physicalSources",
                "Capture one more physical source, durably",
                Listing,
                self.add,
                role=Role.ADMIN,
                body=NewSource,
                errors=_REFUSED,
            ),
            Endpoint(
                "POST",
                f"{one}/remove",
                "Capture a physical source no more, durably",
                RemovedSource,
                self.remove,
                role=Role.ADMIN,
                errors=_NO_SUCH | _REFUSED,
            ),
        )

    async def listing(self, call: Call) -> Listing:
        """Return what a physical source captures."""
        return self._listing(call.path["name"])

    async def change(self, call: Call) -> Listing:
        """Add and remove tables and patterns of a physical source."""
        name, body = call.path["name"], call.body
        await asyncio.to_thread(self._relay.changes.change, name, body.add, body.remove)
        return self._listing(name)

    async def add(self, call: Call) -> Listing:
        """Add a physical source."""
        return self._listing(await asyncio.to_thread(self._relay.changes.add, call.body.settings))

    async def remove(self, call: Call) -> RemovedSource:
        """Remove a physical source."""
        name = call.path["name"]
        folder = await asyncio.to_thread(self._relay.changes.remove, name)
        return RemovedSource(name=name, files=str(folder))

    def _listing(self, name: str) -> Listing:
        settings = self._relay.physical_source(name).settings
        return Listing(
            name=name,
            file=str(settings.file or ""),
            listed=[one for one in settings.source_names if one not in settings.found],
            patterns=list(settings.patterns.texts),
            found=list(settings.found),
        )
