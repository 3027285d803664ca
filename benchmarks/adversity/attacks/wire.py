"""Sections 1 and 4: log packets are lost, doubled, swapped or changed in transit, once."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from benchmarks.adversity.attacks.attack import Attack
from benchmarks.adversity.stage import Scene
from benchmarks.adversity.tampering import FLIPS, HOWS, How, Tampering

RECONNECTS = "taken for a broken connection: read again, nothing lost, nobody asked"
BEFORE, AFTER = 20, 60
FLIPS_EACH = 4
# MariaDB always has them, and does not know these settings.
WITH_GTIDS = {"loose-gtid-mode": "ON", "loose-enforce-gtid-consistency": "ON"}
GTIDS = {"mariadb": "SELECT @@gtid_binlog_pos", "mysql": "SELECT @@gtid_executed"}


def bad_wires() -> Iterator[Attack]:
    """Yield each kind of tampering, with original and with corrected sequence numbers."""
    for how in HOWS:
        for renumbers in (False, True):
            name = f"wire-{how}{'-renumbered' if renumbers else ''}"
            yield Attack(name, 1, RECONNECTS, partial(_tamper, how, renumbers=renumbers))
    yield Attack(
        "wire-drop-transaction-from-gtid",
        1,
        RECONNECTS,
        _lose_behind_gtids,
        setting={"server_options": WITH_GTIDS},
    )
    for how in FLIPS:
        for number in range(1, FLIPS_EACH + 1):
            yield Attack(f"wire-{how}-{number}", 4, RECONNECTS, partial(_tamper, how))


def _tamper(how: How, scene: Scene, *, renumbers: bool = False) -> None:
    scene.start()
    scene.write(BEFORE)
    scene.await_all()
    at = scene.draw.randrange(1, 3 * AFTER)
    tampering = Tampering(how, at, scene.draw, renumbers=renumbers)
    # Not a cut: then it may read again what was delivered already, and that is what is tampered.
    scene.post("pause")
    scene.the_proxy().tamper = tampering
    scene.post("resume")
    scene.write(AFTER)
    scene.saw = ""
    # Not the last one: a loss at the end would only look like a delay.
    scene.wait(lambda: tampering.was_done, "the tampering")
    scene.write(3)
    scene.await_all()
    scene.await_well()


def _lose_behind_gtids(scene: Scene) -> None:
    """Lose a transaction of a stream that may have gaps: only sequence numbers reveal it."""
    session = scene.database.connect()
    ((gtids,),) = session.rows(GTIDS[scene.setting.kind])
    session.close()
    scene.start_from(f"gtid-set:{gtids}")
    scene.write(AFTER)
    at = scene.draw.randrange(1, AFTER)
    tampering = Tampering("drop-transaction", at, scene.draw)
    scene.the_proxy().tamper = tampering
    scene.start()
    scene.wait(lambda: tampering.was_done, "the tampering")
    scene.write(3)
    scene.await_all()
    scene.await_well()
