"""The client: reads relays and bootstrap servers and delivers changes to consumers.

`DatabusClient` is the entry point. Public names are exported here and imported at their
first use: Spark's workers need other modules of this package, and start often.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from databus.client.client import DatabusClient
    from databus.client.consumer import (
        Consumer,
        DataEvent,
        DdlEvent,
        Op,
        Result,
        StatementEvent,
    )
    from databus.client.dead_letters import DeadLetterFile
    from databus.client.dispatcher.data_window import DataWindow
    from databus.client.dispatcher.partition_listener import PartitionListener
    from databus.schemas.errors import (
        CheckpointError,
        ConsumerError,
        DatabusError,
        OtherLogError,
        PlaceNotFoundError,
        RowError,
        SchemaError,
        ScnNotFoundError,
        ServerError,
        SettingsError,
        UnauthorizedError,
        UnknownSourceError,
    )

__all__ = [
    "CheckpointError",
    "Consumer",
    "ConsumerError",
    "DataEvent",
    "DataWindow",
    "DatabusClient",
    "DatabusError",
    "DdlEvent",
    "DeadLetterFile",
    "Op",
    "OtherLogError",
    "PartitionListener",
    "PlaceNotFoundError",
    "Result",
    "RowError",
    "SchemaError",
    "ScnNotFoundError",
    "ServerError",
    "SettingsError",
    "StatementEvent",
    "UnauthorizedError",
    "UnknownSourceError",
]

_HOMES = {
    "DatabusClient": "client",
    "DeadLetterFile": "dead_letters",
    "DataWindow": "dispatcher.data_window",
    "PartitionListener": "dispatcher.partition_listener",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = f"{__name__}.{_HOMES.get(name, 'consumer')}"
    module = import_module("databus.schemas.errors" if name.endswith("Error") else home)
    globals()[name] = found = getattr(module, name)
    return found
