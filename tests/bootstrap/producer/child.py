"""A producer as a process: `python -m tests.bootstrap.producer.child STORE RELAY_URL SOURCE…`."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from databus.bootstrap.producer.producer import Producer
from databus.conf.settings import BootstrapSettings, PhysicalSourceSettings


def settings_for(
    path: Path, *relays: str, sources: tuple[str, ...] = ("shop.orders",)
) -> tuple[BootstrapSettings, PhysicalSourceSettings]:
    """Return the settings of a pair with one physical source."""
    physical = {"name": "shop", "uri": "sqlite:/nowhere.db", "sources": sources}
    made = BootstrapSettings.model_validate(
        {
            "data_dir": path.parent,
            "relays": relays,
            "physical_sources": (physical,),
            "back_off": {"first_s": 0.01, "max_s": 0.05},
        }
    )
    return made, made.physical_sources[0]


def main(path: Path, relay: str, *sources: str) -> None:
    """Produce until killed."""
    settings, physical = settings_for(path, relay, sources=sources)
    Producer(settings, physical, path).start()
    while True:
        time.sleep(1)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
