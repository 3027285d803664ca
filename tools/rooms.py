"""The table of rooms: the purpose of each folder, and what it may import.

`tests/project/test_imports.py` holds every file to it, and `make docs` writes it to
docs/reference/rooms.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

# The other packages that each package may import; all may import themselves and `databus`.
PACKAGES = {
    "schemas": "",
    "conf": "schemas",
    "databus": "schemas conf",
    "registry": "schemas conf",
    "relay": "schemas conf registry",
    "client": "schemas conf registry relay/sources relay/log/archive",
    "bootstrap": "schemas conf registry relay/sources client",
    "pyspark_databus": "client/spark",
    "standalone": "schemas conf registry relay client bootstrap",
    "demo": "schemas conf registry relay client bootstrap",
    "testing": "schemas conf client demo",
}


class Room(NamedTuple):
    """A folder, or a file that is not part of its folder's room, and its purpose."""

    path: str
    purpose: str


# From the bottom up: a file may import from its own room and from those above it in this list.
ROOMS = tuple(
    Room(*line.split(": ", 1))
    for line in """
databus/__init__.py: the version
schemas/rows: plans and compiled code that decode rows
schemas: SCNs, checkpoints, Avro rows, filters, errors, names on the wire
schemas/columns: columns of a row schema, and their types
schemas/event: one event: bytes in both versions, key, control events
schemas/rendering.py: an event as a consumer asked for it
schemas/partitions: the partition of a row, by key or by columns
schemas/parameters.py: parameters that all servers read alike
schemas/stream: streams and pages of events, read
conf: the settings
databus/leases/errors.py: what may be wrong with a lease
databus/daemon: HTTP, access, TLS, logs, files
databus/leases: leases and terms, in a file, SQL or ZooKeeper
databus/servers: servers that are found, in the same stores
databus/groups: groups of consumers, as their records say
databus/cli: the command `databus`
databus/doctor: checks of machine and settings
registry: versions of schemas
relay/sources: what a source is, and the kinds of source
relay/sources/mysql/rows: MySQL's row values
relay/sources/mysql/binlog: bytes of the log to transactions
relay/sources/mysql/tables: definitions, and DDL that changes them
relay/sources/mysql/server: what the server says of itself
relay/sources/mysql/replication: reading the log, and proving it is the same
relay/sources/mysql/search: searches along the log
relay/sources/mysql/scan: rows at rest
relay/sources/mysql: MySQL and MariaDB
relay/sources/sqlite: SQLite
relay/sources/upstream: another relay
relay/catalog.py: names and ids
relay/clock.py: the time
relay/monitoring: clients, errors, history
relay/ring: the ring and its index
relay/log: the relay log, behind the ring
relay/capture: source to ring
relay/span.py: what is complete, and which places are valid
relay/epoch_spans.py: places in the logs of several servers
relay/captured_spans.py: the same of one ring, kept
relay/unlogged_rows.py: statements without rows, counted
relay/catch_up: older windows, from the source's log again
relay/changing: physical sources that come and go
relay: one relay
relay/serving/reading: windows for those who consume, by rung
relay/serving/merging.py: windows of several physical sources in one order
relay/serving/databus: the Databus protocol
relay/serving/protobuf.py: fields of protobuf messages
relay/serving/columns: rows as columns with Java types and texts
relay/serving/canal/protocol: Canal's frames, messages, login and filters, one connection
relay/serving/canal: events as Canal's entries
relay/serving/canal/consuming: clients of a destination, their batches and cursors
relay/serving/canal/door: the port for clients of Canal
relay/serving/ptubes: Ptubes' protocol
relay/serving_processes: processes that serve readers, beside the one that captures
relay/cluster: groups, leases and other servers, as a relay sees them
relay/admin/page_parts: answers for single parts of the page
relay/admin: admin API, page, metrics
relay/service.py: the relay as a daemon
relay/cli: its commands
client/group: partitions that the processes of a group share: rules
client/subscription.py: what is read, from which servers
client/events: the events of a window, as an application gets them
client/arrow: rows as Arrow arrays
client/consumer.py: what an application implements
client/responses.py: what servers answer
client/machines: three layers of state machines
client/puller: requests, decoding, the buffer
client/checkpoints: checkpoints in files and other stores
client/membership: a process as a member of its group
client/dispatcher: callbacks
client/dead_letters.py: events that could not be processed
client/sql: tables of databases: names, types, statements, refusals
client/sinks: the contract of sinks
client/sinks/formats: changes as messages of other systems
client/sinks/rules: what sinks do with changes: order, positions, failures
client/sinks/ready: the sinks that are there
client/sinks/ready/clickhouse: the sink of ClickHouse
client/sinks/ready/mongodb: the sink of MongoDB
client/sinks/ready/redis: the sink of Redis
client/sinks/ready/search: the sink of Elasticsearch and OpenSearch
client/sinks/isolated: sinks whose code runs in a child process, with limits
client/sinks/running: sinks that run
client/finding.py: its servers, named or found
client/registration.py: one registration
client/monitoring: what a client says of itself
client: the client library
client/sinks/reloading: all rows of a source again
client/sinks/serving: sinks of a settings file
client/spark/session.py: a Spark session
client/spark/options.py: options of a reader
client/spark/arrow: rows as Spark's batches
client/spark/planning: what a batch is
client/spark/source: Spark's data sources
client/spark: registering them
client/spark/targets/logs: the commit log in Delta and Iceberg tables
client/spark/targets: tables kept equal to the source
client/spark/modes: versions, deleted rows and each change in targets
client/spark/consuming: changes applied in order
client/spark/monitoring: a query's progress
client/spark/sql: SQL over changes
client/spark/jobs: load, sync
client/spark/verify/checksums: checksums in the source's own database
client/spark/verify: comparing and repairing
client/spark/cli: the commands that run Spark
client/cli: the client's commands
pyspark_databus: where Spark looks for data sources
bootstrap/background.py: threads that can be paused
bootstrap/store: snapshot and log at rest
bootstrap/seeder: the first reading of tables
bootstrap/producer: relay to store
bootstrap/packs: rows packed as columns
bootstrap/ownership: which process fills a store
bootstrap/server: store to clients
bootstrap/admin/status.py: the state of a pair
bootstrap: one pair
bootstrap/server/handlers.py: the commands over HTTP
bootstrap/admin: admin API, metrics
bootstrap/service.py: the pair as a daemon
bootstrap/verify: stored rows against the database's
bootstrap/cli: its commands
standalone: a relay and its bootstrap pair in one process
standalone/quickstart: from a database's URI to a settings file
standalone/cli: its commands
demo: a shop, a relay and a consumer
testing: for the tests of applications
""".strip().splitlines()
)


def room_of(path: Path) -> int:
    """Return the number of a file's room in `ROOMS`; raises LookupError when it has none."""
    for place in (path, *path.parents):
        for number, room in enumerate(ROOMS):
            if room.path == str(place):
                return number
    raise LookupError(f"{path} lies in no room of tools/rooms.py")


_INTRODUCTION = """\
# Rooms

Every folder and its purpose, from the bottom up: a file may import from its own room and from
the rooms above it on this page, as far as its package may. So there are no import cycles. A
test checks every file.

Generated by `make docs` from `tools/rooms.py`; do not edit.

| package | imports |
|---|---|
"""


def rooms_reference() -> str:
    """Return the page of packages and rooms."""
    packages = (
        f"| `{package}` | {', '.join(f'`{one}`' for one in imported.split()) or 'nothing'} |\n"
        for package, imported in PACKAGES.items()
    )
    rooms = (f"| `{room.path}` | {room.purpose} |\n" for room in ROOMS)
    heading = "\n| room | what lives there |\n|---|---|\n"
    return "".join([_INTRODUCTION, *packages, heading, *rooms])
