"""The definition of an attack."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.adversity.servers import KINDS, Kind
from benchmarks.adversity.stage import Scene

SERVERS: tuple[Kind, ...] = ("mariadb", "mysql")
ALL: tuple[Kind, ...] = KINDS


@dataclass(frozen=True)
class Attack:
    """One attack on running processes.

    `run` is given a scene in which nothing runs yet. `wanted` says in words what has to be seen.
    `setting` are fields of `processes.Setting`.
    """

    name: str
    section: int
    wanted: str
    run: Callable[[Scene], None]
    kinds: tuple[Kind, ...] = SERVERS
    setting: Mapping[str, Any] = field(default_factory=dict)
    is_short: bool = False
