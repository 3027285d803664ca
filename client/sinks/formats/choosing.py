"""Formats by name, as the options of a sink choose one."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from databus.client.sinks.formats.avro import avro_row
from databus.client.sinks.formats.canal import canal_message
from databus.client.sinks.formats.cloud_events import cloud_event
from databus.client.sinks.formats.debezium.columns import Datetimes, Decimals
from databus.client.sinks.formats.debezium.envelope import Converter, DebeziumFormat
from databus.client.sinks.formats.maxwell import maxwell_message
from databus.client.sinks.formats.message import Format
from databus.client.sinks.formats.plain import plain_message
from databus.conf.model import Settings

TextFormatName = Literal["plain", "debezium", "maxwell", "canal", "cloudevents"]
FormatName = Literal[TextFormatName, "avro"]


class DebeziumSettings(Settings):
    """What Debezium's connector has settings for."""

    name: str = Field(default="databus", description="`source.name`, the connector's topic.prefix")
    converter: Converter = Field(
        default="json", description="JSON without schemas, with them, or Avro with a registry"
    )
    decimals: Decimals = Field(default="precise", description="As its decimal.handling.mode")
    datetimes: Datetimes = Field(
        default="auto", description="`auto`: as the connector, microseconds from DATETIME(4) on"
    )


def chosen_format(name: FormatName, debezium: DebeziumSettings) -> Format:
    """Return a format."""
    if name == "debezium":
        given = debezium
        return DebeziumFormat(given.name, given.decimals, given.datetimes, given.converter)
    others: dict[str, Format] = {
        "plain": plain_message,
        "maxwell": maxwell_message,
        "canal": canal_message,
        "cloudevents": cloud_event,
        "avro": avro_row,
    }
    return others[name]


def needs_registry(name: FormatName, debezium: DebeziumSettings) -> bool:
    """Whether messages are in Avro, whose schemas a registry keeps."""
    return name == "avro" or (name == "debezium" and debezium.converter == "avro")
