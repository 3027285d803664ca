"""The tables `store` and `sources`: the producer's position, and how far each source is.

The SQL of `Store`, which says when and why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from databus.bootstrap.stored import SourceState, SourceStatus
from databus.schemas.scn import MAX_SCN

POSITION = "select scn, timestamp_ns from store"
MOVE = "update store set scn = ?, timestamp_ns = ?"
STATE_FIELDS = tuple(field.name for field in fields(SourceState))
STATES = f"select {', '.join(STATE_FIELDS)} from sources"
ADD_SOURCE = """
insert into sources (name, src_id, status, log_floor_scn, tombstone_floor_scn)
values (?, ?, 'new', ?, ?)
"""
# After an absence: what happened meanwhile is neither in the log nor among the tombstones.
COME_BACK = """
update sources set status = 'new', floor_scn = -1, log_floor_scn = ?, tombstone_floor_scn = ?,
    seed_scn = -1, seed_resume = null, seed_until_scn = -1, problem = '', log_bytes = 0
where name = ?
"""
LEAVE = "update sources set status = 'inactive', problem = ? where name = ?"
COUNT_LOG_BYTES = """
update sources set log_bytes = log_bytes + ? where src_id = ? and status != 'inactive'
"""
COUNT_LOG_BYTES_GONE = "update sources set log_bytes = log_bytes - ? where src_id = ?"
SUM_LOG_BYTES = "select coalesce(sum(log_bytes), 0) from sources"
RAISE_LOG_FLOOR = "update sources set log_floor_scn = max(log_floor_scn, ?)"
RAISE_TOMBSTONE_FLOOR = """
update sources set tombstone_floor_scn = max(tombstone_floor_scn, ?) where name = ?
"""
ADD_SCHEMA = """
insert into schema_versions (src_id, version, digest, text)
values (?1, case when exists (
    select 1 from schema_versions where src_id = ?1 and version = ?2
) then (select max(version) + 1 from schema_versions where src_id = ?1) else ?2 end, ?3, ?4)
on conflict (src_id, digest) do nothing
"""
SCHEMA_TEXT = "select text from schema_versions where digest = ?"
ALL_SCHEMAS = "select src_id, version, text from schema_versions order by src_id, version"
# Rows that were served when the store fell off are compared with the table's by
# the seeding: of those only what came and went within the hole stays unknown.
BEGIN_LOG = """
update sources set
    floor_scn = -1, log_floor_scn = ?1,
    tombstone_floor_scn = case status when 'fell_off_relay' then tombstone_floor_scn
        else max(tombstone_floor_scn, ?1) end,
    hole_end_scn = case status when 'fell_off_relay' then ?1 else hole_end_scn end,
    status = case status when 'fell_off_relay' then 'new' else status end
where status != 'inactive'
"""
FALL_OFF = f"""
update sources set status = 'fell_off_relay', problem = ?1, log_bytes = 0,
    hole_begin_scn = case when status != 'active' then 0
        when hole_begin_scn = -1 then ?2 else hole_begin_scn end,
    floor_scn = {MAX_SCN}, log_floor_scn = {MAX_SCN},
    seed_scn = -1, seed_resume = null, seed_until_scn = -1
where status != 'inactive'
"""
BEGIN_SEEDING = """
update sources set status = 'seeding', seed_scn = ?, seed_resume = null, seed_rows = 0,
    seed_estimate = ?, seed_until_scn = -1
where name = ?
"""
PROGRESS = "update sources set seed_resume = ?, seed_rows = seed_rows + ? where name = ?"
READ_UNTIL = "update sources set seed_until_scn = ? where name = ?"
CATCH_UP = "update sources set status = 'seeding_catch_up' where name = ?"
CAUGHT_UP = """
select name, src_id, seed_scn, log_floor_scn, partial_scn from sources, store
where status = 'seeding_catch_up' and seed_until_scn <= store.scn
"""
# Events with rows that lack columns were let into the log while it was seeded:
# who needs one of them is sent the rows.
ACTIVATE = """
update sources set status = 'active', floor_scn = max(seed_scn, partial_scn),
    seed_resume = null, problem = ''
where name = ?
"""
RESET = """
update sources set status = 'new', floor_scn = -1, seed_scn = -1, seed_resume = null,
    seed_rows = 0, seed_until_scn = -1, problem = ?
where name = ?
"""
NOTE_PARTIAL = "update sources set partial_scn = ? where src_id = ?"
SET_PROBLEM = "update sources set problem = ? where name = ?"


def state_of(row: Sequence[Any]) -> SourceState:
    """Return the state that a row of STATES is."""
    values = dict(zip(STATE_FIELDS, row, strict=True))
    return SourceState(**{**values, "status": SourceStatus(values["status"])})
