"""A job's plan in words."""

from __future__ import annotations

from collections.abc import Iterator

from databus.client.spark.sql.job_file import SqlJob
from databus.client.spark.sql.plan import SOURCE_COLUMN, JoinPlan, Plan, UnionPlan
from databus.client.spark.sql.query import Condition, Relation, Select


def explain(job: SqlJob) -> list[str]:
    """Say what a job will do, a sentence a line; nobody is asked for anything."""
    select = job.query.selects[0]
    of_form = _wide(job, select) if select.joined else _rows(job)
    return [
        f"{job.settings.target} is kept equal to the SELECT of {job.name}.",
        *of_form,
        *_servers(job),
        f"How far it is, is in {job.settings.checkpoint}: started again, it goes on from there.",
    ]


def explain_keys(plan: Plan) -> list[str]:
    """Say what only the sources' columns tell."""
    key = ", ".join(plan.key)
    source = plan.source_column if isinstance(plan, UnionPlan) else None
    told = f" and {source}" if source else ""
    lines = [f"A row of the target is known by {key}{told}."]
    if plan.added:
        lines.append(f"{', '.join(plan.added)}: added in front, for it is of the key.")
    if isinstance(plan, JoinPlan):
        for feed, mirror in plan.mirrors.items():
            lines.append(f"The mirror of {feed.label} has {', '.join(mirror.columns)}.")
    return lines


def _rows(job: SqlJob) -> Iterator[str]:
    for select in job.query.selects:
        source = select.relation.label
        if select.where is None:
            yield f"Each row of {source} is a row of it, by the same primary key."
            continue
        condition = _text(job, select.where)
        yield f"A row of {source} is in it while {condition} is true (NULL is not)."
        yield (
            "  A change that makes it true inserts, one that leaves it true updates, "
            "one that ends it deletes."
        )
    if len(job.query.selects) > 1:
        yield (
            f"Rows of different branches are told apart by a text column, if each branch selects "
            f"another text, and by {SOURCE_COLUMN} in any case: equal keys do not meet."
        )


def _wide(job: SqlJob, select: Select) -> Iterator[str]:
    fact = select.relation.label
    yield f"It has at most one row for each row of {fact}, the fact, by its primary key."
    for one in select.joined:
        lacking = (
            "without one its columns are NULL" if one.is_left else "without one there is no row"
        )
        yield f"{one.relation.label} is looked up where {_text(job, one.on)}; {lacking}."
    if select.where is not None:
        yield f"Of these rows it has those of which {_text(job, select.where)} is true."
    yield (
        "Each batch first goes into mirrors of the tables, in the folder mirrors of the "
        "checkpoint; then the wide rows are computed again of all facts that changed, and of "
        "those that refer to something that did."
    )


def _servers(job: SqlJob) -> Iterator[str]:
    for relation in _each_once(job.query.relations):
        servers = job.servers_of(relation.physical_source)
        relays, stores = ", ".join(servers.relays), ", ".join(servers.bootstrap_servers)
        begin = (
            f"the rows that there are come from {stores}, then the changes from {relays}"
            if stores
            else f"the changes come from {relays}, which must hold all there ever were, for there "
            "is no bootstrap server"
        )
        yield f"{relation.label}: {begin}."


def _each_once(relations: list[Relation]) -> list[Relation]:
    return list({relation.label: relation for relation in relations}.values())


def _text(job: SqlJob, condition: Condition) -> str:
    tokens = condition.tokens
    text = job.query.text.text[tokens[0].start : tokens[-1].end + 1]
    return " ".join(text.split())
