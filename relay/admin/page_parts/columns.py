"""The endpoint `GET /api/v1/sources/{name}/columns`: the columns of one schema version."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from databus.daemon.http.openapi import ApiModel, Call, Endpoint
from databus.registry.differences import columns_of
from databus.relay.relay import Relay
from databus.schemas.errors import InvalidParameterError


class ColumnView(ApiModel):
    """One column."""

    name: str
    type: str = Field(description="The database's type, with \"null\" if it may be; or else Avro's")
    key_position: int | None = Field(description="Place in the primary key, from 1; None = not")


class Columns(ApiModel):
    """The columns of one version of a source, in the table's order."""

    source: str
    version: int
    columns: list[ColumnView]


class ColumnsQuery(ApiModel):
    """The version."""

    version: int | None = Field(default=None, ge=1, description="Left out: the newest")


class ColumnStatus:
    """Answers with columns, from the registry."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay

    def endpoints(self, root: str) -> Sequence[Endpoint]:
        """Return its endpoint."""
        return (
            Endpoint(
                "GET",
                f"{root}/sources/{{name}}/columns",
                "The columns of a version of a source's schema",
                Columns,
                self.columns,
                query=ColumnsQuery,
                errors={404: "Unknown source"},
                is_by_source=True,
            ),
        )

    async def columns(self, call: Call) -> Columns:
        """Return the columns of a version."""
        catalog = self._relay.catalog
        source = catalog.name_of(catalog.resolve(call.path["name"]))
        call.peer.check_read(source)
        versions = {one.version: one for one in self._relay.registry.versions(source)}
        wanted = call.query.version or max(versions, default=0)
        if wanted not in versions:
            known = ", ".join(map(str, versions)) or "there is none yet"
            raise InvalidParameterError("version", str(wanted), f"one of {known}")
        found = [
            ColumnView(name=one.name, type=one.type, key_position=one.key_position)
            for one in columns_of(versions[wanted].text)
        ]
        return Columns(source=source, version=wanted, columns=found)
