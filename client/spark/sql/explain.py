"""Describe a job's plan in sentences."""

from __future__ import annotations

from collections.abc import Iterator

from databus.client.spark.sql.job_file import SqlJob
from databus.client.spark.sql.plan import SOURCE_COLUMN, JoinPlan, Plan, UnionPlan
from databus.client.spark.sql.query import Condition, Relation, Select
from databus.conf.addresses import shown_uri


def explain(job: SqlJob) -> list[str]:
    """Return what a job will do, one sentence a line, without asking any server."""
    select = job.query.selects[0]
    of_form = _wide(job, select) if select.joined else _rows(job)
    return [
        f"{shown_uri(job.settings.target)} is kept equal to the SELECT of {job.name}.",
        *of_form,
        *_servers(job),
        f"The position is stored in {job.settings.checkpoint}; a restarted job continues from it.",
    ]


def explain_keys(plan: Plan) -> list[str]:
    """Return sentences about key and columns, which depend on the sources' columns."""
    key = ", ".join(plan.key)
    source = plan.source_column if isinstance(plan, UnionPlan) else None
    and_source = f" and {source}" if source else ""
    lines = [f"The key of the target is {key}{and_source}."]
    if plan.added:
        lines.append(f"Key columns that were not selected are added: {', '.join(plan.added)}.")
    if isinstance(plan, JoinPlan):
        for stream, kept in plan.state.items():
            lines.append(f"The join state of {stream.label} has {', '.join(kept.columns)}.")
    return lines


def _rows(job: SqlJob) -> Iterator[str]:
    for select in job.query.selects:
        source = select.relation.label
        if select.where is None:
            yield f"It has each row of {source}, with the same primary key."
            continue
        condition = _text(job, select.where)
        yield f"It has a row of {source} while {condition} is true (NULL is not)."
        yield (
            "  A change inserts the row when the condition becomes true, updates it while it "
            "stays true, and deletes it when it becomes false."
        )
    if len(job.query.selects) > 1:
        yield (
            f"Rows of different branches never collide: {SOURCE_COLUMN} is part of the key, and "
            "so is a text column in which each branch selects another text."
        )


def _wide(job: SqlJob, select: Select) -> Iterator[str]:
    fact = select.relation.label
    yield f"It has at most one row for each row of {fact}, the fact, with its primary key."
    for one in select.joined:
        lacking = (
            "without a match its columns are NULL" if one.is_left else "without a match no row"
        )
        yield f"{one.relation.label} is looked up where {_text(job, one.on)}; {lacking}."
    if select.where is not None:
        yield f"It has only the rows for which {_text(job, select.where)} is true."
    yield (
        "Each batch is first applied to the join state, a copy of each table in the folder "
        "mirrors of the checkpoint; then the wide rows are computed again for all facts that "
        "changed, and for those that refer to a changed row."
    )


def _servers(job: SqlJob) -> Iterator[str]:
    for relation in _each_once(job.query.relations):
        servers = job.servers_of(relation.physical_source)
        relays, stores = ", ".join(servers.relays), ", ".join(servers.bootstrap_servers)
        begin = (
            f"existing rows are read from {stores}, changes from {relays}"
            if stores
            else f"changes are read from {relays}; without a bootstrap server the relay must "
            "hold all changes since the table was created"
        )
        yield f"{relation.label}: {begin}."


def _each_once(relations: list[Relation]) -> list[Relation]:
    return list({relation.label: relation for relation in relations}.values())


def _text(job: SqlJob, condition: Condition) -> str:
    tokens = condition.tokens
    text = job.query.text.text[tokens[0].start : tokens[-1].end + 1]
    return " ".join(text.split())
