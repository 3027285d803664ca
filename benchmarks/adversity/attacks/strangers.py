"""Section 5: requests that anybody can send, and answers that a lying relay can give."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from urllib.parse import quote

from benchmarks.adversity import liar
from benchmarks.adversity.attacks.attack import ALL, Attack
from benchmarks.adversity.monitor import fetch
from benchmarks.adversity.stage import PATIENCE_S, Scene
from benchmarks.adversity.writer import SOURCE
from databus.demo.private_mariadb import HOST
from databus.demo.processes import Child

CAPTURES = "capture and the consumer go on; well once they are gone"
HONEST = "taken for an error of the relay: asked again, nothing wrong, nobody stuck"
IDLE, BURST, UNREAD = 1000, 120, 250
REFUSED_MOST, CUTS = 20, 5
# Before silent connections are closed (`http.request_s`).
BESIDE_S = 12.0
FILES = 1024
LIES = 3
# An event size that a relay sends twice must be believed.
SINGLE_LIES = frozenset({"pending-size"})
# docs/operating.md: "within five seconds"; the machine may be busy.
STOP_S = 7.0
LARGE_BYTES = 5_000_000  # of a note: windows of up to 70 MB
STREAM = f"/stream?sources={SOURCE}&size=16000000&maxev=2"

# Facts that only the relay knows are not among them: which windows exist, and which are gone.
FORGERIES: dict[str, liar.Forge] = {
    "resume-ahead": liar.with_resume(1 << 40),
    "resume-before": liar.with_resume(-(1 << 40)),
    "resume-offset": liar.with_resume(0, 7),
    "resume-garbage": liar.with_header(liar.RESUME, "x,y"),
    "resume-negative": liar.with_header(liar.RESUME, "-5,-5"),
    "ahead": liar.with_header("x-databus-ahead", "true"),
    "pending-size": liar.with_header("x-dbus-pending-event-size", str(1 << 31)),
    "length-2g": liar.with_length((1 << 31) - 1),
    "length-0": liar.with_length(0),
    "length-49": liar.with_length(49),
    "header-crc": liar.with_crc,
    "flip-early": liar.with_flip(0.02),
    "flip-middle": liar.with_flip(0.5),
    "flip-late": liar.with_flip(0.98),
    "cut-middle": liar.cut_at(0.6),
    "cut-late": liar.cut_at(0.99),
    "doubled": liar.doubled,
}


def strangers() -> Iterator[Attack]:
    """Yield the attacks of strangers and of lying relays."""
    limit = {"relay_files": FILES}
    yield Attack("idle-connections", 5, CAPTURES, _idle, ALL, setting=limit)
    yield Attack("idle-connections-few-files", 5, CAPTURES, _idle, setting={"relay_files": 256})
    for who in ("bootstrap", "client"):
        yield Attack(
            f"idle-connections-at-the-{who}",
            5,
            CAPTURES,
            partial(_idle, who=who),
            ("sqlite",),
            setting=limit | {"has_bootstrap": True},
        )
    in_time = f"ends within {STOP_S:g} s with 0"
    yield Attack("unread-answers-and-sigterm", 5, in_time, _unread, ("sqlite",))
    yield Attack(
        "unread-large-answers-and-sigterm",
        5,
        in_time,
        partial(_unread, readers=20, note_bytes=LARGE_BYTES, transactions=12),
        ("sqlite",),
        setting={"source_options": {"ring_bytes": "300M"}},
    )
    yield Attack(
        "unread-pages-and-sigterm",
        5,
        in_time,
        _unread_pages,
        ("sqlite",),
        setting={"has_bootstrap": True},
    )
    yield Attack(
        "garbage-on-every-port",
        5,
        CAPTURES,
        _garbage,
        ("sqlite", "mariadb"),
        setting={"has_bootstrap": True},
    )
    for name, forge in FORGERIES.items():
        yield Attack(
            f"lying-relay-{name}",
            5,
            HONEST,
            partial(_lies, forge, 1 if name in SINGLE_LIES else LIES),
            ("sqlite",),
            setting={"has_liar": True},
            is_short=name in ("resume-ahead", "flip-middle"),
        )


def _idle(scene: Scene, who: str = "relay") -> None:
    scene.start()
    scene.write(20)
    scene.await_all()
    scene.saw = ""
    port, url = _place_of(scene, who)
    with ExitStack() as stack, scene.writer.flowing(40):
        _crowd(stack, port)
        scene.rest(1.0)
        for _ in range(BURST):
            link = _connect(stack, port, wait_s=0.1)
            with contextlib.suppress(OSError, AttributeError):
                link.sendall(b"GET /sources HTTP/1.1\r\nHost: a\r\n\r\n")  # type: ignore[union-attr]
        # Meanwhile capture needs file descriptors itself.
        for _ in range(CUTS if scene.proxy is not None else 0):
            scene.the_proxy().cut()
            scene.rest(0.2)
        scene.rest(2.0)
        committed = scene.writer.committed
        what = "capture and the consumer to go on beside strangers"
        scene.wait(lambda: scene.delivered() >= committed, what, BESIDE_S)
    scene.write(20)
    scene.await_all()
    scene.await_well()
    scene.wait(lambda: fetch(f"{url}/health")[0] == 200, f"the {who} to be well again")


def _crowd(stack: ExitStack, port: int) -> None:
    """Open silent connections until the server accepts hardly any more."""
    refused = 0
    for _ in range(IDLE):
        refused += _connect(stack, port, wait_s=1) is None
        if refused > REFUSED_MOST:
            return


def _place_of(scene: Scene, who: str) -> tuple[int, str]:
    return {
        "relay": (scene.relay_port, scene.relay_url),
        "bootstrap": (scene.bootstrap_port, scene.bootstrap_url),
        "client": (scene.client_port, scene.client_url),
    }[who]


def _unread(
    scene: Scene, readers: int = UNREAD, note_bytes: int = 3000, transactions: int = 800
) -> None:
    scene.writer.note_bytes = note_bytes
    scene.start()
    scene.write(transactions)
    scene.await_all()
    scene.saw = ""
    _stop_unread(scene, scene.relay, scene.relay_port, STREAM, readers)
    scene.start_relay()
    scene.writer.note_bytes = 100
    scene.write(5)
    scene.await_all()


def _unread_pages(scene: Scene) -> None:
    scene.writer.note_bytes = 3000
    scene.start()
    scene.write(800)
    scene.await_all()
    scene.wait_for_store()
    scene.saw = ""
    at = {"consumption_mode": "BOOTSTRAP_SNAPSHOT", "snapshot_source": SOURCE, "snapshot_offset": 0}
    begin = quote(json.dumps(at | {"bootstrap_since_scn": 0}))
    asked = f"sources={SOURCE}&checkPoint="
    start = json.loads(fetch(f"{scene.bootstrap_url}/startSCN?{asked}{begin}")[1])
    page = quote(json.dumps(at | {"bootstrap_since_scn": 0, "bootstrap_start_scn": int(start)}))
    target = f"/bootstrap?batchSize=16000000&maxev=2&{asked}{page}"
    _stop_unread(scene, scene.bootstrap, scene.bootstrap_port, target, UNREAD)
    scene.start_bootstrap()
    scene.write(5)
    scene.await_all()


def _stop_unread(scene: Scene, child: Child, port: int, target: str, readers: int) -> None:
    """Stop a process whose responses are not read; record if it takes long or fails."""
    with ExitStack() as stack:
        for _ in range(readers):
            link = _connect(stack, port, buffer_bytes=4096)
            if link is not None:
                link.sendall(f"GET {target} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        scene.rest(2.0)
        begun_s = time.monotonic()
        child.stop(PATIENCE_S)
        took_s = time.monotonic() - begun_s
    scene.saw = f"ended within {took_s:.1f} s with {child.exit_code}"
    if took_s > STOP_S:
        scene.found(f"hang: SIGTERM took {took_s:.0f} s with {readers} unread answers")
    if child.exit_code != 0:
        scene.found(f"SIGTERM ended it with {child.exit_code}")


def _garbage(scene: Scene) -> None:
    scene.start()
    scene.must_answer_from_now_on()
    with scene.writer.flowing(40):
        for port in (scene.relay_port, scene.bootstrap_port, scene.client_port):
            for data in _rubbish(scene.draw):
                _send(port, data)
    scene.await_all()
    scene.await_well()


def _lies(forge: liar.Forge, lies: int, scene: Scene) -> None:
    scene.start()
    scene.write(30)
    scene.await_all()
    scene.saw = ""
    lying = scene.the_liar()
    lying.forge, lying.lies = forge, lies
    with scene.writer.flowing(60):
        scene.wait(lambda: lying.told, "a lie to be told")
        scene.rest(1.0)
    lying.lies = 0
    scene.write(20)
    scene.await_all()


def _rubbish(draw: random.Random) -> Iterator[bytes]:
    for size in (1, 10, 100, 1000, 70_000, 3_000_000):
        yield draw.randbytes(size)
    yield b"GET /" + b"a" * 3_000_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n"
    yield b"GET /stream?" + b"&a=1" * 250_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n"
    yield b"GET /health HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n"
    yield b"POST /stream HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999\r\n\r\nx"
    yield b"POST /stream HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\nx"
    yield b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + draw.randbytes(500)
    for checkpoint in ("{", "[" * 9000, '{"windowScn":1e999}', '{"windowScn":-9,"windowOffset":9}'):
        yield f"GET {STREAM}&checkPoint={checkpoint} HTTP/1.1\r\nHost: a\r\n\r\n".encode()


def _connect(
    stack: ExitStack, port: int, buffer_bytes: int = 0, wait_s: float = 5
) -> socket.socket | None:
    """Open a connection that stays open; None when the server refuses it."""
    link = stack.enter_context(contextlib.closing(socket.socket()))
    if buffer_bytes:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
    link.settimeout(wait_s)
    try:
        link.connect((HOST, port))
    except OSError:
        return None
    return link


def _send(port: int, data: bytes) -> None:
    with contextlib.suppress(OSError), contextlib.closing(socket.socket()) as link:
        link.settimeout(5)
        link.connect((HOST, port))
        link.sendall(data)
        link.shutdown(socket.SHUT_WR)
        link.recv(1 << 16)
