"""Section 3: a byte of a file at rest is changed."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from benchmarks.adversity.attacks.attack import ALL, SERVERS, Attack
from benchmarks.adversity.stage import Broken, Scene
from benchmarks.adversity.tampering import flipped

NAMED = "an error that names the file and the way on, at once, or no harm at all"
WAYS = "remove|move |restore|put |copy|repair|begin|restart"
AT_ONCE_S = 30.0
FLIPS_EACH = 3
# A ring's header pages, and its first windows.
RELAY_FILE_BYTES = 40_000
# A ring whose oldest windows are not read when it is opened.
LARGE = {"ring_bytes": "48MiB"}
FILLING, FILLING_BYTES = 1700, 3900
# Bytes that stay valid when they are changed: only a checksum reveals it.
A_NUMBER = re.compile(rb'"windowScn": \d*(\d)')
A_NAME = re.compile(rb'"name": ?"(n)ote"')
A_NOTE = re.compile(rb"\d:[0-9a-f]{31}([0-9a-f])x")

# Which byte of a file is changed, and to what.
Change = Callable[[bytes, random.Random], tuple[int, bytes]]


def damaged_files() -> Iterator[Attack]:
    """Yield attacks that flip a byte in each file that is read again."""
    files: tuple[tuple[str, str], ...] = (
        ("ring-head", "shop.ring"),
        ("schemas", "schemas.db"),
        ("max-scn", "shop.scn"),
    )
    for number in range(1, FLIPS_EACH + 1):
        for name, file in files:
            run = partial(_relay_file, file, _anywhere(most=RELAY_FILE_BYTES))
            yield Attack(f"flip-{name}-{number}", 3, NAMED, run, ALL if number == 1 else SERVERS)
        run = partial(_relay_file, "shop.history", _anywhere())
        yield Attack(f"flip-history-{number}", 3, NAMED, run)
        run = partial(_checkpoint, _anywhere())
        yield Attack(f"flip-checkpoint-{number}", 3, NAMED, run, ("sqlite",))
        yield Attack(
            f"flip-bootstrap-store-{number}",
            3,
            NAMED,
            partial(_store, _anywhere()),
            ("sqlite", "mariadb"),
            setting={"has_bootstrap": True},
        )
        for name, is_running in (("at-rest", False), ("while-served", True)):
            yield Attack(
                f"flip-old-windows-{name}-{number}",
                3,
                NAMED,
                partial(_old_windows, is_running),
                ("sqlite",),
                setting={"source_options": LARGE, "is_equal": True},
            )
    yield Attack("flip-checkpoint-scn", 3, NAMED, partial(_checkpoint, _in(A_NUMBER)), ("sqlite",))
    run = partial(_relay_file, "schemas.db", _in(A_NAME))
    yield Attack("flip-schemas-text", 3, NAMED, run, ("sqlite",))
    yield Attack(
        "flip-bootstrap-store-row",
        3,
        NAMED,
        partial(_store, _in(A_NOTE)),
        ("sqlite",),
        setting={"has_bootstrap": True},
    )


def _relay_file(name: str, change: Change, scene: Scene) -> None:
    scene.start_relay()
    scene.write(60)
    scene.wait_for_ring(60)
    scene.stop_relay()
    file = scene.data_dir / name
    _flip(scene, file, change)
    scene.may_end("relay")
    scene.relay.start()
    scene.start_consumer()
    scene.write(5)
    _right_or_named(scene, file)


def _old_windows(is_running: bool, scene: Scene) -> None:
    scene.writer.note_bytes = FILLING_BYTES
    scene.start_relay()
    scene.write(FILLING)
    scene.wait_for_ring(FILLING)
    file = scene.data_dir / "shop.ring"
    if not is_running:
        scene.stop_relay()
    _flip(scene, file, _anywhere(least=8192, most=4 << 20))
    if not is_running:
        scene.relay.start()
    scene.start_consumer()
    _right_or_named(scene, file)


def _checkpoint(change: Change, scene: Scene) -> None:
    scene.start()
    scene.write(60)
    scene.await_all()
    scene.rest(0.5)
    scene.consumer.stop(30)
    scene.write(10)
    (file,) = scene.checkpoints.glob("*.json")
    before = scene.checkpoint_scn()
    _flip(scene, file, change)
    scene.may_end("consumer")
    scene.start_consumer()
    try:
        _right_or_named(scene, file)
    finally:
        _, *again = (each.scn for each in scene.deliveries() if each.kind == "start")
        if again not in ([], [before]):
            scene.found(f"wrong row: the checkpoint was {before}, and was read as {again[0]}")


def _store(change: Change, scene: Scene) -> None:
    scene.start_relay()
    scene.write(60)
    scene.start_bootstrap()
    scene.write(60)
    scene.wait_for_store()
    scene.bootstrap.stop(30)
    file = scene.folder / "bootstrap" / "shop.db"
    _flip(scene, file, change)
    scene.may_end("bootstrap")
    scene.bootstrap.start()
    scene.start_consumer("--start", "beginning")
    _right_or_named(scene, file, AT_ONCE_S * 2)


def _anywhere(least: int = 0, most: int = 1 << 40) -> Change:
    """Return a function that changes a random byte between two offsets."""

    def change(data: bytes, draw: random.Random) -> tuple[int, bytes]:
        at = draw.randrange(least, min(len(data), most))
        return at, flipped(data[at : at + 1], 0, draw)

    return change


def _in(text: re.Pattern[bytes]) -> Change:
    """Return a function that flips the lowest bit of a byte in the last occurrence of a text."""

    def change(data: bytes, _draw: random.Random) -> tuple[int, bytes]:
        places = [found.start(1) for found in text.finditer(data)]
        if not places:
            raise Broken(f"nothing in the file is like {text.pattern!r}")
        return places[-1], bytes([data[places[-1]] ^ 1])

    return change


def _flip(scene: Scene, file: Path, change: Change) -> None:
    data = file.read_bytes()
    at, changed = change(data, scene.draw)
    with file.open("r+b") as opened:
        opened.seek(at)
        opened.write(changed)
    scene.did = f"byte {at} of {len(data)} of {file.name}"


def _right_or_named(scene: Scene, file: Path, patience_s: float = AT_ONCE_S) -> None:
    """Wait until everything is delivered, or an error names the file and the remedy."""
    committed = scene.writer.committed
    said: list[str] = []

    def is_over() -> bool:
        said[:] = [text for text in _errors(scene) if file.name in text or str(file) in text]
        return bool(said) or scene.delivered() >= committed

    scene.saw = ""
    try:
        scene.wait(is_over, f"everything, or an error that names {file.name}", patience_s)
    except Broken as broken:
        said_at_all = " | ".join(filter(None, _errors(scene)))[:400]
        raise Broken(f"{broken}; {scene.did}; said: {said_at_all or 'nothing'}") from None
    if said:
        scene.wants_all = False
        scene.check_words(said[0], WAYS)
    else:
        scene.saw = f"no harm: {scene.did}"


def _errors(scene: Scene) -> list[str]:
    """Return the problems that relay, bootstrap pair and consumer report."""
    return [
        scene.relay.log_tail() if scene.relay.exit_code else "",
        scene.bootstrap.log_tail() if scene.bootstrap.exit_code else "",
        scene.problem(),
        scene.bootstrap_problem(),
        scene.client_problem(),
        *scene.stops(),
    ]
