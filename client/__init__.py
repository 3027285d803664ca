"""The client: three state machines, a puller, dispatchers, consumers, checkpoints.

The way in is `DatabusClient`; what applications name is exported here.
"""

from databus.client.client import DatabusClient
from databus.client.consumer import Consumer, DataEvent, Op, Result
from databus.client.dispatch import DataWindow

__all__ = ["Consumer", "DataEvent", "DataWindow", "DatabusClient", "Op", "Result"]
