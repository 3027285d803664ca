"""The model of a physical source's problem in the relay's API."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from databus.daemon.http.openapi import ApiModel

CaptureState = Literal[
    "starting", "running", "unreachable", "retrying", "paused", "stopped", "error"
]
TroubledPart = Literal[
    "database", "capture", "table", "ring", "relay_log", "lease", "catch_up", "files"
]


class Trouble(ApiModel):
    """A problem of a physical source, and when it is retried."""

    physical_source: str
    part: TroubledPart = Field(
        default="capture", description="What has the problem; left out by older relays"
    )
    state: CaptureState
    text: str
    since: float | None
    next_try_at: float | None = Field(description="None: it waits for a person")
