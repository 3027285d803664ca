"""Who did what is kept: with its result, over restarts, bounded, and without any secret."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from databus.relay.admin.page_parts.audit import FILE, MOST_SHOWN, Action, AuditLog
from tests.promises.running import wait_until
from tests.relay.fakes import ServedRelay, get

READER, ADMIN = "a-token-of-a-reader", "a-token-of-an-admin"


def locked(folder: Path) -> ServedRelay:
    """Return a relay with tokens."""
    files = {}
    for kind, token in (("reader", READER), ("admin", ADMIN)):
        files[f"{kind}_tokens_file"] = folder / kind
        files[f"{kind}_tokens_file"].write_text(token)
        files[f"{kind}_tokens_file"].chmod(0o600)
    return ServedRelay(folder, http={"port": 0, **files})


def bearer(token: str) -> dict[str, str]:
    """Return the header with a token."""
    return {"Authorization": f"Bearer {token}"}


def mark(token: str) -> str:
    """Return what stands for a token."""
    return hashlib.sha256(token.encode()).hexdigest()[:8]


def actions(relay: ServedRelay) -> list[dict[str, Any]]:
    """Return what the relay says, the newest first."""
    found: list[dict[str, Any]] = json.loads(get(relay.url, "/api/v1/audit", bearer(ADMIN)).body)[
        "actions"
    ]
    return found


def action(number: int) -> Action:
    """Return a made-up action."""
    path = f"/api/v1/physicalSources/shop/pause?{number}"
    return Action(
        at=1.0, who="admin token 1", address="::1", agent="x", method="POST", path=path, status=200
    )


def test_what_admins_do_and_what_others_try_is_kept_over_a_restart_without_tokens(
    tmp_path: Path,
) -> None:
    relay = locked(tmp_path)
    pause = "/api/v1/physicalSources/shop/pause"
    try:
        assert get(relay.url, pause, bearer(ADMIN), "POST").status == 200
        assert get(relay.url, pause, bearer(READER), "POST").status == 403
        assert get(relay.url, pause, bearer("somebody-elses-token"), "POST").status == 401
        assert get(relay.url, pause, {}, "POST").status == 401
        assert get(relay.url, "/controlSources/unpause", bearer(ADMIN), "POST").status == 200
        missing = "/api/v1/physicalSources/nothing/pause"
        assert get(relay.url, missing, bearer(ADMIN), "POST").status == 404
        get(relay.url, "/api/v1/clients", bearer(READER))  # reading is no action
        wanted = [
            (f"admin token {mark(ADMIN)}", pause, 200),
            (f"reader token {mark(READER)}", pause, 403),
            (f"unknown token {mark('somebody-elses-token')}", pause, 401),
            ("no token", pause, 401),
            (f"admin token {mark(ADMIN)}", "/controlSources/unpause", 200),
            (f"admin token {mark(ADMIN)}", missing, 404),
        ]

        def kept() -> set[tuple[str, str, int]]:
            return {(one["who"], one["path"], one["status"]) for one in actions(relay)}

        wait_until(lambda: kept() == set(wanted), "the actions")
        assert {one["address"] for one in actions(relay)} == {"127.0.0.1"}
        assert get(relay.url, "/api/v1/audit", bearer(READER)).status == 403
    finally:
        relay.close()
    file = tmp_path / "data" / FILE
    assert file.stat().st_mode & 0o077 == 0
    text = file.read_text()
    assert not any(token in text for token in (READER, ADMIN, "somebody-elses-token"))
    again = locked(tmp_path)
    try:
        assert kept_of(again) == set(wanted)
    finally:
        again.close()


def kept_of(relay: ServedRelay) -> set[tuple[str, str, int]]:
    """Return the actions as triples."""
    return {(one["who"], one["path"], one["status"]) for one in actions(relay)}


def test_the_files_are_bounded_and_the_newest_actions_stay(tmp_path: Path) -> None:
    log = AuditLog(tmp_path, most_bytes=2_000)
    for number in range(300):
        log.add(action(number))
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert len(sizes) == 2
    assert all(size <= 2_000 for size in sizes)
    newest = [one.path.partition("?")[2] for one in log.newest_first()]
    assert newest == [str(number) for number in range(299, 299 - MOST_SHOWN, -1)]
    read = [one.path.partition("?")[2] for one in AuditLog(tmp_path).newest_first()]
    assert read == newest[: len(read)]
    assert len(read) > 10


def test_a_line_cut_by_a_crash_is_left_out(tmp_path: Path) -> None:
    AuditLog(tmp_path).add(action(1))
    with (tmp_path / FILE).open("a") as file:
        file.write('{"at": 2.0, "who"')
    assert [one.path[-1] for one in AuditLog(tmp_path).newest_first()] == ["1"]


def test_a_file_that_cannot_be_written_is_said_and_the_action_is_shown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = AuditLog(tmp_path / "missing")
    log.add(action(1))
    assert len(log.newest_first()) == 1
    assert "cannot be written" in log.problem
    assert "shop/pause" in caplog.text
