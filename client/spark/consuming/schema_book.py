"""The schemas of a query's sources, asked for again when rows tell of a newer version."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence

from databus.client.spark.options import SourceOptions, parse_options
from databus.client.spark.planning.server_pool import ServerPool
from databus.schemas.columns.avro_columns import WriterSchema


class SchemaBook:
    """Knows all versions that relays and bootstrap servers list. Any thread may use it."""

    def __init__(self, options: SourceOptions) -> None:
        """Raises SettingsError for a token file that cannot be read."""
        self._pools = [
            ServerPool(urls, options.retry_seconds, options.access)
            for urls in (options.relays, options.bootstrap_servers)
            if urls
        ]
        self._known: dict[str, dict[int, WriterSchema]] = {}
        self._lock = threading.Lock()

    @classmethod
    def of(
        cls,
        relays: Sequence[str],
        bootstrap_servers: Sequence[str] = (),
        options: Mapping[str, str] | None = None,
    ) -> SchemaBook:
        """Return the book of these servers; `options` are more options of `format("databus")`."""
        given = {"relays": ",".join(relays), "bootstrapServers": ",".join(bootstrap_servers)}
        return cls(parse_options({"sources": "*", **(options or {}), **given}))

    def close(self) -> None:
        """Close the connections."""
        for pool in self._pools:
            pool.close()

    def versions(self, source: str, used: Collection[int] = ()) -> list[WriterSchema]:
        """Return the known versions of a source in order; `used` are those that rows have.

        Servers are asked if one of those is not known. A version that they do not list
        is not in the result. Raises DatabusError.
        """
        with self._lock:
            known = self._known.setdefault(source, {})
            for pool in self._pools:
                if known and known.keys() >= set(used):
                    break
                self._ask(pool, [source])
            return [known[number] for number in sorted(known)]

    def look_again(self, sources: Collection[str]) -> None:
        """Ask the relays for all versions of sources. Raises DatabusError."""
        with self._lock:
            self._ask(self._pools[0], sorted(sources))

    def _ask(self, pool: ServerPool, sources: Sequence[str]) -> None:
        for source, schemas in pool.register(sources).items():
            known = self._known.setdefault(source, {})
            for schema in schemas:
                known.setdefault(schema.version, schema)
