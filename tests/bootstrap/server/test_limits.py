"""What one client may cost a bootstrap server: time, the length of filters; and who may ask."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from databus.bootstrap.server.reader_pool import THREADS
from databus.bootstrap.server.source_lookup import Stores
from databus.schemas.checkpoint import Checkpoint, ConsumptionMode
from tests.bootstrap.filled import PERSON
from tests.bootstrap.serving import ServedStore
from tests.databus.daemon.test_access import ADMIN, READER, bearer, write_tokens
from tests.relay.fakes import get

ENDLESS = "with recursive c(x) as (select 1 union all select x + 1 from c) select count(*) from c"
BEGIN = Checkpoint(ConsumptionMode.SNAPSHOT).to_json()


@contextmanager
def serving(folder: Path, **http: Any) -> Iterator[ServedStore]:
    made = ServedStore(folder, http=http)
    try:
        yield made
    finally:
        made.close()


def error_in(body: bytes) -> str:
    error: str = json.loads(body)["error"]
    return error


def test_a_read_without_end_is_ended_and_its_thread_reads_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_for_ever(_request: object, stores: Stores, _listed: object) -> None:
        stores.open["shop"]._connection.execute(ENDLESS).fetchone()

    with serving(tmp_path, max_answer_s=0.2) as served:
        for _ in range(2):
            answer = served.get("/startSCN", sources=PERSON.source, checkPoint=BEGIN)
            assert answer.status == 200
            with monkeypatch.context() as patched:
                patched.setattr("databus.bootstrap.server.handlers.find_start", read_for_ever)
                for _ in range(THREADS):
                    answer = served.get("/startSCN", sources=PERSON.source, checkPoint=BEGIN)
                    assert answer.status == 503
                    assert error_in(answer.body) == "RequestTimedOutException"


def test_a_filter_is_so_long_and_no_longer(tmp_path: Path) -> None:
    with serving(tmp_path, max_filter_bytes=1024) as served:
        for path in ("/bootstrap", "/measure"):
            answer = served.get(path, filter=" " * 1025, sources=PERSON.source)
            assert answer.status == 400
            assert (
                "at most 1024 bytes (http.max_filter_bytes)" in json.loads(answer.body)["message"]
            )


@pytest.mark.parametrize(
    "path", ["/sources", "/register", "/startSCN", "/bootstrap", "/measure", "/metrics"]
)
def test_without_a_token_nothing_is_read(tmp_path: Path, path: str) -> None:
    tokens = {
        "reader_tokens_file": str(write_tokens(tmp_path / "readers", READER)),
        "admin_tokens_file": str(write_tokens(tmp_path / "admins", ADMIN)),
    }
    with serving(tmp_path, **tokens) as served:
        assert get(served.url, path).status == 401
        assert get(served.url, path, bearer(READER)).status != 401
        assert json.loads(get(served.url, "/health").body).keys() == {"service", "status"}
