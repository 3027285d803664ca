"""Section 4: a resource runs out for a while. That is reported, and recovery is automatic."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path

from benchmarks.adversity.attacks.attack import ALL, SERVERS, Attack
from benchmarks.adversity.disks import limited
from benchmarks.adversity.stage import PATIENCE_S, Scene

HEALS = "it says what is the matter; then goes on by itself, nothing lost"
BEFORE, DURING_S = 30, 6.0
SEEN_WITHIN_S = 8.0
# A server that waits for room looks again once a minute.
SERVER_PATIENCE_S = 3 * PATIENCE_S
NO_SPACE = "space|full|too large|File too large"


def exhausted_machines() -> Iterator[Attack]:
    """Yield an attack for each resource that may run out."""
    yield Attack(
        "data-dir-full",
        4,
        HEALS,
        _data_dir_full,
        ALL,
        setting={"disks_mib": {"relay": 40}},
    )
    yield Attack(
        "data-dir-full-and-quiet",
        4,
        HEALS,
        _data_dir_full_and_quiet,
        ("sqlite", "mariadb"),
        setting={"disks_mib": {"relay": 40}},
    )
    yield Attack(
        "checkpoint-disk-full",
        4,
        HEALS,
        _checkpoint_disk_full,
        ("sqlite", "mariadb"),
        setting={"disks_mib": {"checkpoints": 4}},
    )
    yield Attack(
        "bootstrap-disk-full",
        4,
        HEALS,
        _bootstrap_disk_full,
        ("sqlite", "mariadb"),
        setting={"disks_mib": {"bootstrap": 24}, "has_bootstrap": True},
    )
    yield Attack("files-used-up", 4, HEALS, _files_used_up, ALL)
    yield Attack("files-used-up-at-a-reconnect", 4, HEALS, partial(_files_used_up, cuts=True))
    yield Attack("client-files-used-up", 4, HEALS, _client_files_used_up, ("sqlite",))
    yield Attack(
        "database-disk-full",
        4,
        HEALS,
        _database_disk_full,
        ALL,
        setting={"disks_mib": {"database": 400}},
    )
    yield Attack("database-locked", 4, HEALS, _database_locked, SERVERS)


def _begin(scene: Scene) -> None:
    scene.start()
    scene.write(BEFORE)
    scene.await_all()
    scene.saw = ""


def _end(scene: Scene, patience_s: float = PATIENCE_S) -> None:
    scene.write(20)
    scene.await_all(patience_s)
    scene.await_well(patience_s)


def _while_it_lasts(
    scene: Scene,
    trouble: AbstractContextManager[None],
    says: Callable[[], str],
    *words: str,
) -> None:
    """Write during a shortage, and check that it is reported."""
    with scene.writer.flowing(60):
        with trouble:
            scene.rest(DURING_S)
            if words:
                scene.wait_for_words(says, *words, patience_s=SEEN_WITHIN_S)
        scene.rest(0.5)


def _data_dir_full(scene: Scene) -> None:
    _begin(scene)
    scene.must_answer_from_now_on()
    full = scene.disks["relay"].full(scene.relay)
    _while_it_lasts(scene, full, scene.problem, NO_SPACE)
    _end(scene)


def _data_dir_full_and_quiet(scene: Scene) -> None:
    """No progress is possible meanwhile: each retry fails at the same place."""
    _begin(scene)
    with scene.disks["relay"].full(scene.relay):
        scene.write(3)
        scene.rest(DURING_S)
        scene.wait_for_words(scene.problem, NO_SPACE, patience_s=SEEN_WITHIN_S)
    _end(scene)


def _checkpoint_disk_full(scene: Scene) -> None:
    _begin(scene)
    full = scene.disks["checkpoints"].full(scene.consumer)
    _while_it_lasts(scene, full, scene.client_problem, NO_SPACE)
    _end(scene)


def _bootstrap_disk_full(scene: Scene) -> None:
    scene.start_relay()
    scene.write(BEFORE)
    scene.start_bootstrap()
    scene.start_consumer()
    full = scene.disks["bootstrap"].full(scene.bootstrap)
    _while_it_lasts(scene, full, scene.bootstrap_problem, NO_SPACE)
    _end(scene)
    scene.wait_for_store()


def _files_used_up(scene: Scene, *, cuts: bool = False) -> None:
    _begin(scene)
    used = _descriptors(scene.relay.pid)
    with ExitStack() as stack:
        stack.enter_context(scene.writer.flowing(60))
        stack.enter_context(limited(scene.relay, resource.RLIMIT_NOFILE, used))
        if cuts:
            scene.the_proxy().cut()
        scene.rest(DURING_S)
    _end(scene)


def _client_files_used_up(scene: Scene) -> None:
    _begin(scene)
    used = _descriptors(scene.consumer.pid)
    with scene.writer.flowing(60), limited(scene.consumer, resource.RLIMIT_NOFILE, used - 2):
        scene.rest(DURING_S)
    _end(scene)


def _database_disk_full(scene: Scene) -> None:
    _begin(scene)
    with scene.writer.flowing(60):
        with scene.disks["database"].full():
            scene.rest(DURING_S)
        scene.rest(0.5)
        # Does nothing if it still runs.
        if scene.server is not None:
            scene.server.start()
    _end(scene, SERVER_PATIENCE_S)


def _database_locked(scene: Scene) -> None:
    _begin(scene)
    session = scene.database.connect()
    with scene.writer.flowing(60):
        session.execute("FLUSH TABLES WITH READ LOCK")
        scene.the_proxy().cut()
        scene.rest(DURING_S / 2)
        session.close()
    _end(scene)


def _descriptors(pid: int) -> int:
    """Return the number after the highest that a process has open."""
    return 1 + max(int(file.name) for file in Path(f"/proc/{pid}/fd").iterdir())
