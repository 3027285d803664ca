"""Where everything may live, and what it may import: the one table.

`tests/project/test_imports.py` holds every file to it, and `make docs` draws it in
docs/architecture.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

# What each package may import of the others; all may import themselves and `databus`.
PACKAGES = {
    "schemas": "",
    "conf": "schemas",
    "databus": "schemas conf",
    "registry": "schemas conf",
    "relay": "schemas conf registry",
    "client": "schemas conf registry relay/sources",
    "bootstrap": "schemas conf registry relay/sources client",
    "pyspark_databus": "client/spark",
    "demo": "schemas conf registry relay client bootstrap",
}


class Room(NamedTuple):
    """A folder, or a file that stands apart from its folder: `path`, and what it is for."""

    path: str
    purpose: str


# From the bottom up: a file may import from its own room and from those above it in this list.
ROOMS = tuple(
    Room(*line.split(": ", 1))
    for line in """
databus/__init__.py: the version
schemas: SCNs, checkpoints, Avro rows, filters, errors
schemas/event: one event: bytes in both versions, key, control events
schemas/rendering.py: an event as a consumer asked for it
schemas/protocol.py: parameters and headers of the protocol
schemas/stream: streams and pages of events, read
conf: the settings
databus/daemon: HTTP, access, TLS, logs, files
databus/cli: the command `databus`
databus/doctor: checks of machine and settings
registry: versions of schemas
relay/sources: what a source is
relay/sources/mysql/rows: MySQL's row values
relay/sources/mysql/binlog: bytes of the log to transactions
relay/sources/mysql/tables: definitions, and DDL that changes them
relay/sources/mysql/server: what the server says of itself
relay/sources/mysql/replication: reading the log, and proving it is the same
relay/sources/mysql/scan: rows at rest
relay/sources/mysql: MySQL and MariaDB
relay/sources/sqlite: SQLite
relay/sources/kind.py: the kinds of source
relay/catalog.py: names and ids
relay/clock.py: the time
relay/monitoring: clients, errors, history
relay/ring: the ring and its index
relay/capture: source to ring
relay: one relay
relay/serving/databus: the Databus protocol
relay/admin: admin API, page, metrics
relay/service.py: the relay as a daemon
relay/cli: its commands
client/subscription.py: what is read, from which servers
client/consumer.py: what an application implements
client/responses.py: what servers answer
client/machines: three layers of state machines
client/puller: requests, decoding, the buffer
client/checkpoints: checkpoints in files
client/dispatcher: callbacks
client/registration.py: one registration
client/monitoring: what a client says of itself
client: the client library
client/spark/session.py: a Spark session
client/spark/options.py: options of a reader
client/spark/arrow: rows as Arrow batches
client/spark/planning: what a batch is
client/spark/source: Spark's data sources
client/spark: registering them
client/spark/targets: tables kept equal to the source
client/spark/consuming: changes applied in order
client/spark/monitoring: a query's progress
client/spark/sql: SQL over changes
client/spark/jobs: load, sync
client/spark/verify: comparing and repairing
client/spark/cli: the commands that run Spark
client/cli: the client's commands
pyspark_databus: where Spark looks for data sources
bootstrap/store: snapshot and log at rest
bootstrap/seeder: the first reading of tables
bootstrap/producer: relay to store
bootstrap/server: store to clients
bootstrap/admin/status.py: the state of a pair
bootstrap: one pair
bootstrap/server/handlers.py: the commands over HTTP
bootstrap/admin: admin API, metrics
bootstrap/service.py: the pair as a daemon
bootstrap/verify: stored rows against the database's
bootstrap/cli: its commands
demo: a shop, a relay and a consumer
""".strip().splitlines()
)


def room_of(path: Path) -> int:
    """Return the number of a file's room in `ROOMS`; raises LookupError when it has none."""
    for place in (path, *path.parents):
        for number, room in enumerate(ROOMS):
            if room.path == str(place):
                return number
    raise LookupError(f"{path} lies in no room of tools/rooms.py")
