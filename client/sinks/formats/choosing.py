"""Formats by name, as the options of a sink choose one."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from databus.client.sinks.formats.canal import canal_message
from databus.client.sinks.formats.cloud_events import cloud_event
from databus.client.sinks.formats.debezium import DebeziumFormat
from databus.client.sinks.formats.maxwell import maxwell_message
from databus.client.sinks.formats.message import Format
from databus.client.sinks.formats.plain import plain_message
from databus.conf.model import Settings

FormatName = Literal["plain", "debezium", "maxwell", "canal", "cloudevents"]


class DebeziumSettings(Settings):
    """What Debezium's connector has settings for."""

    name: str = Field(default="databus", description="`source.name`, the connector's topic.prefix")
    decimals: Literal["precise", "string", "double"] = Field(
        default="precise", description="As its decimal.handling.mode"
    )
    datetimes: Literal["millis", "micros"] = Field(
        default="millis", description="`micros` for columns of DATETIME(4) to DATETIME(6)"
    )


def chosen_format(name: FormatName, debezium: DebeziumSettings) -> Format:
    """Return a format."""
    if name == "debezium":
        return DebeziumFormat(debezium.name, debezium.decimals, debezium.datetimes)
    others: dict[str, Format] = {
        "plain": plain_message,
        "maxwell": maxwell_message,
        "canal": canal_message,
        "cloudevents": cloud_event,
    }
    return others[name]
