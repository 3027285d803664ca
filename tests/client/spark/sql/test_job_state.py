"""A job's own folder belongs to one SELECT and one target, and holds no password."""

from __future__ import annotations

from pathlib import Path

import pytest

from databus.client.spark.sql.explain import explain
from databus.client.spark.sql.job_file import SqlJob, parse_job
from databus.client.spark.sql.job_state import FILE, open_folder
from databus.client.spark.sql.plan import SourceColumns, SourceStream
from databus.schemas.errors import SettingsError

COLUMNS = {SourceStream("shop.orders"): SourceColumns(("id", "note"), ("id",))}


def job_of(folder: Path, target: str) -> SqlJob:
    head = f"-- target: {target}\n-- checkpoint: {folder}\n-- relays: http://127.0.0.1:1\n"
    return parse_job(f"{head}SELECT id, note FROM shop.orders")


def test_the_password_of_a_target_is_neither_stored_nor_shown_and_a_new_one_is_no_other_target(
    tmp_path: Path,
) -> None:
    job = job_of(tmp_path / "job", "mysql+pymysql://app:s3cret@db/lake#orders")
    open_folder(job, COLUMNS).keep()
    texts = [(tmp_path / "job" / FILE).read_text(), *explain(job)]
    assert not [text for text in texts if "s3cret" in text]
    changed = job_of(tmp_path / "job", "mysql+pymysql://app:changed@db/lake#orders")
    assert open_folder(changed, COLUMNS).app_id == open_folder(job, COLUMNS).app_id


def test_another_target_is_refused_without_its_password(tmp_path: Path) -> None:
    first = job_of(tmp_path / "job", "mysql+pymysql://app:s3cret@db/lake#orders")
    open_folder(first, COLUMNS).keep()
    other = job_of(tmp_path / "job", "mysql+pymysql://app:s3cret@db/lake#others")
    with pytest.raises(SettingsError, match="created with another target") as caught:
        open_folder(other, COLUMNS)
    assert "s3cret" not in str(caught.value)
