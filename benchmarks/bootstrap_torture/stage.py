"""Database, relay and bootstrap pair as processes, for torture, benchmarks and tests."""

from __future__ import annotations

import json
from collections.abc import Sequence

from databus.bootstrap.store.store import SourceState, SourceStatus, Store
from databus.demo.databases import Dialect
from databus.demo.processes import free_port, python_module
from databus.demo.stage import Stage, bootstrap_settings
from databus.schemas.errors import BootstrapError

READ = (SourceStatus.SEEDING_CATCH_UP, SourceStatus.ACTIVE)


class BootstrapStage(Stage):
    """A stage with `producer`, `seeder` and `server`; start them yourself.

    `seeding` are settings of the bootstrap pair, in TOML's values. The store
    is opened, to read, by the first call of `states` that finds it; that and
    `close` belong to one thread.
    """

    def __init__(
        self,
        dialect: Dialect,
        statements: Sequence[str],
        sources: Sequence[str],
        *,
        ring_bytes: str,
        seeding: dict[str, int],
    ) -> None:
        super().__init__(dialect, statements, sources, ring_bytes=ring_bytes)
        self._bootstrap_port = free_port()
        self._seeding = seeding
        self._store: Store | None = None

    def __enter__(self) -> BootstrapStage:
        super().__enter__()
        file = self.folder / "bootstrap.toml"
        settings = bootstrap_settings(self.database, self._sources, self.url, self._bootstrap_port)
        seeding = [f"{key} = {value}\n" for key, value in self._seeding.items()]
        file.write_text("".join(seeding) + settings, encoding="utf-8")

        def command(*words: str) -> list[str]:
            return python_module(self._command_module, "bootstrap", *words, "-c", file)

        self.producer = self.child("producer", command("run", "--no-serve", "--no-seed"))
        self.seeder = self.child("seeder", command("seed"))
        self.server = self.child("server", command("serve"))
        return self

    def close(self) -> None:
        """Stop everything and remove the folder."""
        if self._store is not None:
            self._store.close()
            self._store = None
        super().close()

    def oldest_scn(self) -> int:
        """Return the SCN of the relay's oldest window; -1 without one."""
        oldest: int = json.loads(self.get("/bufferInfo/inbound/shop/0"))["minScn"]
        return oldest

    def states(self) -> list[SourceState]:
        """Return the state of each source of the store; none before the store exists."""
        if self._store is None:
            path = self.folder / "bootstrap" / "shop.db"
            try:
                self._store = Store.open(path, is_read_only=True)
            except BootstrapError:  # the producer has not made it yet, or not all of it
                return []
        return self._store.sources()

    def is_active(self) -> bool:
        """Return whether every source can be served."""
        states = self.states()
        all_active = all(s.status is SourceStatus.ACTIVE for s in states)
        return len(states) == len(self._sources) and all_active

    def is_read(self) -> bool:
        """Return whether all rows are read; the log may still have to catch up."""
        states = self.states()
        return len(states) == len(self._sources) and all(s.status in READ for s in states)
