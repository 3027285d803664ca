"""What a job file may say: all that is refused is named, with its place and a way out."""

from __future__ import annotations

from pathlib import Path

import pytest

from databus.client.spark.sql.binder import bind, streams_of
from databus.client.spark.sql.job_file import SqlJob, parse_job, read_job
from databus.client.spark.sql.plan import (
    JoinPlan,
    Output,
    Plan,
    SourceColumns,
    SourceStream,
    UnionPlan,
)
from databus.schemas.errors import SettingsError

HEAD = """\
-- Open orders, for the dashboard.
-- target: delta:lake/open_orders
-- relays: http://127.0.0.1:11115, http://127.0.0.1:11125
-- checkpoint: lake/jobs/open_orders

"""
COLUMNS = {
    "shop.orders": SourceColumns(
        ("id", "Customer", "status", "total", "shipping", "billing"), ("id",)
    ),
    "shop.customers": SourceColumns(("id", "name", "country"), ("id",)),
    "shop.countries": SourceColumns(("code", "name"), ("code",)),
    "shop.prices": SourceColumns(("product", "day", "price"), ("product", "day")),
    "shop.lines": SourceColumns(("order_id", "line", "product", "day"), ("order_id", "line")),
    "shop.log": SourceColumns(("text",), ()),
}


def job_of(select: str, head: str = HEAD) -> SqlJob:
    return parse_job(head + select)


def plan_of(select: str, head: str = HEAD) -> Plan:
    query = job_of(select, head).query
    return bind(query, {stream: COLUMNS[stream.source] for stream in streams_of(query)})


def union_of(select: str, head: str = HEAD) -> UnionPlan:
    plan = plan_of(select, head)
    assert isinstance(plan, UnionPlan)
    return plan


def join_of(select: str) -> JoinPlan:
    plan = plan_of(select)
    assert isinstance(plan, JoinPlan)
    return plan


# The file


def test_the_comments_before_the_select_are_settings() -> None:
    settings = job_of("SELECT id FROM shop.orders").settings
    assert settings.target == "delta:lake/open_orders"
    assert settings.relays == ("http://127.0.0.1:11115", "http://127.0.0.1:11125")
    assert settings.bootstrap_servers == ()
    assert settings.checkpoint == Path("lake/jobs/open_orders")


def test_comments_for_the_reader_and_those_within_the_select_set_nothing() -> None:
    head = HEAD + "-- Note: a job\n-- see http://example.org\n"
    job_of("SELECT id, -- target: here\n total -- end: x\nFROM shop.orders -- relays: y", head)


def test_a_physical_source_may_have_its_own_relays() -> None:
    head = HEAD + "-- relays.east: http://east:1\n-- bootstrap_servers.east: http://east:2\n"
    job = job_of("SELECT id FROM east.shop.orders UNION ALL SELECT id FROM west.shop.orders", head)
    assert job.servers_of("east").relays == ("http://east:1",)
    assert job.servers_of("east").bootstrap_servers == ("http://east:2",)
    assert job.servers_of("west").relays == job.settings.relays
    assert streams_of(job.query) == [
        SourceStream("shop.orders", "east"),
        SourceStream("shop.orders", "west"),
    ]


REFUSED_FILES = [
    ("-- target: delta:x\n", "checkpoint"),
    (HEAD + "-- targets: x\n", "`-- targets: …` names no setting; the settings are target, relays"),
    (HEAD + "-- target.east: x\n", "`-- target.east: …` names no setting"),
    (HEAD + "-- target: delta:y\n", "line 6: target is given twice"),
    (HEAD + "-- trigger_seconds: soon\n", "trigger_seconds"),
    (HEAD + "-- relays.east: http://east\n", "the SELECT reads nothing of east"),
    (HEAD + "-- bootstrap_servers.east: http://east\n", "the SELECT reads nothing of east"),
    (HEAD.replace("-- relays", "-- Relays"), "line 6, column 16: no relay is given for shop.or"),
]


@pytest.mark.parametrize(("head", "said"), REFUSED_FILES)
def test_wrong_settings_are_refused(head: str, said: str) -> None:
    with pytest.raises(SettingsError) as refused:
        job_of("SELECT id FROM shop.orders", head)
    assert said in str(refused.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"missing\.sql: cannot be read"):
        read_job(tmp_path / "missing.sql")


# What is no SELECT that a table can be kept equal to

REFUSED = [
    ("", "no SELECT; a job file has one SELECT"),
    ("SELECT id FROM shop.orders; SELECT id FROM shop.orders", "2 statements; a job file has one"),
    ("SELECT id FROM shop.orders WHERE (", "line 6, column 34: not Spark SQL"),
    ("SELECT id FROM shop.orders WHERE name = 'x", "not Spark SQL"),
    ("INSERT INTO x SELECT id FROM shop.orders", "INSERT is not supported: a job file has one"),
    ("DELETE FROM shop.orders", "DELETE is not supported"),
    ("SELECT DISTINCT id FROM shop.orders", "DISTINCT is not supported: each row of the target"),
    ("SELECT id FROM shop.orders GROUP BY id", "line 6, column 37: GROUP BY is not supported"),
    ("SELECT id FROM shop.orders GROUP BY ALL", "GROUP BY is not supported"),
    ("SELECT id FROM shop.orders HAVING id > 1", "column 35: HAVING is not supported"),
    ("SELECT id FROM shop.orders\nORDER BY id", "line 7, column 10: ORDER BY is not supported"),
    ("SELECT id FROM shop.orders LIMIT 3", "LIMIT is not supported: which rows it takes"),
    ("SELECT id FROM shop.orders LIMIT 3 OFFSET 2", "is not supported: which rows it takes"),
    ("SELECT id FROM shop.orders QUALIFY row_number() OVER (ORDER BY id) = 1", "QUALIFY is not"),
    ("SELECT id FROM shop.orders LATERAL VIEW explode(x) y AS z", "LATERAL VIEW is not supported"),
    ("SELECT /*+ BROADCAST(c) */ id FROM shop.orders", "a hint is not supported"),
    ("SELECT id FROM shop.orders TABLESAMPLE (10 PERCENT)", "TABLESAMPLE is not supported"),
    ("SELECT id FROM shop.orders VERSION AS OF 3", "VERSION AS OF is not supported: a job follo"),
    ("SELECT id FROM shop.orders AS o(x)", "names of columns after a table's alias"),
    ("WITH q AS (SELECT 1) SELECT id FROM shop.orders", "WITH is not supported: write the one"),
    ("SELECT id FROM (SELECT id FROM shop.orders) q", "a subquery is not supported"),
    ("SELECT id FROM shop.orders WHERE id IN (SELECT 1)", "a subquery is not supported"),
    ("SELECT id, (SELECT 1) AS x FROM shop.orders", "a subquery is not supported"),
    ("SELECT id FROM VALUES (1), (2)", "FROM and JOIN take a source by its name"),
    ("SELECT id FROM com.example.shop.Orders", "backquotes, as `com.example.shop.Orders`"),
    ("SELECT 1 AS id", "SELECT … FROM a source is needed"),
    ("FROM shop.orders SELECT id", "SELECT … FROM a source is needed, in this order"),
    ("SELECT id FROM orders", "orders is not a source: write schema and table, as shop.orders"),
    ("SELECT count(*) AS n FROM shop.orders", "column 8: COUNT is an aggregate, but each row"),
    ("SELECT id, max(total) AS m FROM shop.orders", "MAX is an aggregate"),
    ("SELECT id, sum(total) OVER () AS s FROM shop.orders", "OVER is not supported"),
    ("SELECT id, explode(split(status, ',')) AS s FROM shop.orders", "EXPLODE makes several rows"),
    ("SELECT id FROM shop.orders WHERE total > :least", "a parameter has no value here"),
    ("SELECT id, current_timestamp() AS t FROM shop.orders", "CURRENT_TIMESTAMP has another value"),
    ("SELECT id, now() AS t FROM shop.orders", "column 12: NOW has another value at each call"),
    ("SELECT id FROM shop.orders WHERE day < current_date", "CURRENT_DATE has another value"),
    ("SELECT id, uuid() AS u FROM shop.orders", "UUID has another value"),
    ("SELECT id, rand() AS r FROM shop.orders", "RAND has another value"),
    ("SELECT id, unix_timestamp() AS r FROM shop.orders", "CURRENT_TIMESTAMP has another value"),
    ("SELECT id, total * 2 FROM shop.orders", "column 12: this expression has no name: write `AS"),
    ("SELECT id, 'x' FROM shop.orders", "this expression has no name"),
    ("SELECT id AS _databus_scn FROM shop.orders", "names that begin with _databus"),
    (
        "SELECT * EXCEPT (id) FROM shop.orders",
        "a star with EXCEPT or REPLACE is not supported: list the columns",
    ),
    ("SELECT id FROM shop.orders UNION SELECT id FROM shop.orders", "UNION without ALL"),
    ("SELECT id FROM shop.orders EXCEPT SELECT id FROM shop.orders", "EXCEPT is not supported"),
    (
        "SELECT id FROM shop.orders UNION ALL BY NAME SELECT id FROM shop.orders",
        "UNION ALL BY NAME is not supported",
    ),
    (
        "SELECT id FROM shop.orders UNION ALL SELECT id FROM shop.orders LIMIT 1",
        "LIMIT is not supported",
    ),
    (
        "SELECT id FROM shop.orders UNION ALL SELECT o.id FROM shop.orders o "
        "JOIN shop.customers c ON c.id = o.customer",
        "JOIN within UNION ALL is not supported: write one job for each branch",
    ),
    (
        "SELECT id FROM shop.orders UNION ALL SELECT id FROM east.shop.orders",
        "shop.orders is named with and without a physical source",
    ),
    ("SELECT o.id FROM shop.orders o, shop.customers c", "shop.customers is joined without ON"),
    ("SELECT o.id FROM shop.orders o JOIN shop.customers c", "shop.customers is joined without"),
    ("SELECT o.id FROM shop.orders o JOIN shop.customers c USING (id)", "USING is not supported"),
    ("SELECT o.id FROM shop.orders o NATURAL JOIN shop.customers c", "NATURAL JOIN is not support"),
    (
        "SELECT o.id FROM shop.orders o RIGHT JOIN shop.customers c ON c.id = o.customer",
        "column 43: RIGHT JOIN is not supported: write the table whose rows the target has first",
    ),
    (
        "SELECT o.id FROM shop.orders o FULL OUTER JOIN shop.customers c ON c.id = o.customer",
        "FULL OUTER JOIN is not supported",
    ),
    (
        "SELECT o.id FROM shop.orders o LEFT SEMI JOIN shop.customers c ON c.id = o.customer",
        "LEFT SEMI JOIN is not supported",
    ),
    (
        "SELECT o.id FROM shop.orders o JOIN (SELECT 1 AS id) c ON c.id = o.customer",
        "a subquery is not supported",
    ),
]


@pytest.mark.parametrize(("select", "said"), REFUSED)
def test_what_is_not_supported_is_refused_with_its_place(select: str, said: str) -> None:
    with pytest.raises(SettingsError) as refused:
        job_of(select)
    assert said in str(refused.value)
    assert str(refused.value).startswith("job.sql")


# Names and keys

UNBOUND = [
    ("SELECT id, nothing FROM shop.orders", "column 12: there is no column nothing; shop.orders"),
    ("SELECT id FROM shop.orders WHERE c.id = 1", "column 34: c is not a table of this SELECT"),
    ("SELECT shop.orders.id FROM shop.orders o", "shop.orders is not a table of this SELECT"),
    ("SELECT id, total AS ID FROM shop.orders", "two columns of the target are called ID"),
    ("SELECT text FROM shop.log", "column 18: shop.log has no primary key"),
    (
        "SELECT total AS id FROM shop.orders",
        "the key column id of shop.orders is not selected unchanged",
    ),
    (
        "SELECT id FROM shop.orders o JOIN shop.customers c ON c.id = o.customer",
        "column 8: id is a column of o and c: write the table's name",
    ),
    (
        "SELECT * FROM shop.orders o JOIN shop.customers c ON c.id = o.customer",
        "two columns of the target are called id: rename one with AS",
    ),
    (
        "SELECT o.id FROM shop.orders o JOIN shop.customers o ON o.id = o.customer",
        "two tables are called o",
    ),
    (
        "SELECT c.name FROM shop.customers c JOIN shop.orders o ON o.customer = c.id",
        "shop.orders is joined without `id = a column of the tables before it, or a literal`",
    ),
    (
        "SELECT o.id FROM shop.orders o JOIN shop.customers c ON c.id = o.customer + 1",
        "shop.customers is joined without `id = a column",
    ),
    (
        "SELECT o.id FROM shop.orders o JOIN shop.customers c ON c.id = o.customer OR c.id = 1",
        "shop.customers is joined without `id = a column",
    ),
    (
        "SELECT l.line FROM shop.lines l JOIN shop.prices p ON p.product = l.product",
        "shop.prices is joined without `day = a column of the tables before it, or a literal` "
        "(its primary key is product, day)",
    ),
    (
        "SELECT o.id FROM shop.orders o JOIN shop.log l ON l.text = o.status",
        "cannot be a dimension",
    ),
    (
        "SELECT o.id FROM shop.orders o JOIN shop.customers c ON c.id = o.customer "
        "AND k.code = 1 JOIN shop.countries k ON k.code = c.country",
        "k is not a table of this SELECT; its tables are: o, c",
    ),
    (
        "SELECT id, total FROM shop.orders UNION ALL SELECT id FROM shop.customers",
        "this branch has 1 columns, the first has 2",
    ),
    (
        "SELECT id, total FROM shop.orders UNION ALL SELECT country, id FROM shop.customers",
        "the key of shop.customers (id) is not in the same columns as that of shop.orders (id)",
    ),
    (
        "SELECT id FROM shop.orders UNION ALL SELECT id FROM shop.orders WHERE total = 1",
        "two branches read shop.orders, and no column tells their rows apart",
    ),
]


@pytest.mark.parametrize(("select", "said"), UNBOUND)
def test_names_and_keys_that_do_not_fit_are_refused(select: str, said: str) -> None:
    with pytest.raises(SettingsError) as refused:
        plan_of(select)
    assert said in str(refused.value)


def test_expressions_go_to_spark_as_they_were_written() -> None:
    plan = union_of(
        "SELECT o.ID AS order_id, UPPER( `status` ) shout, date_format(o.Total, 'yyyy') AS `a b`,\n"
        "  transform(split(status, ','), s -> concat(s, STATUS)) AS parts, 'é' || status AS x\n"
        "FROM shop.orders o WHERE status IS DISTINCT FROM 'shut' AND o.Customer <=> 3 -- end"
    )
    (branch,) = plan.branches
    assert [output.expression for output in branch.outputs] == [
        "`id`",
        "UPPER( `status` )",
        "date_format(`total`, 'yyyy')",
        "transform(split(`status`, ','), s -> concat(s, `status`))",
        "'é' || `status`",
    ]
    assert plan.columns == ("order_id", "shout", "a b", "parts", "x")
    assert branch.condition == "`status` IS DISTINCT FROM 'shut' AND `Customer` <=> 3"
    assert branch.key == (Output("order_id", "id"),)


def test_a_table_may_be_named_in_whole_before_a_column() -> None:
    for select in (
        "SELECT shop.orders.id FROM shop.orders",
        "SELECT orders.id FROM shop.orders",
        "SELECT east.shop.orders.id FROM east.shop.orders",
        "SELECT id FROM `shop.orders`",
    ):
        assert union_of(select).branches[0].outputs == (Output("id", "`id`"),)


def test_a_key_that_is_not_selected_is_added_in_front() -> None:
    plan = union_of("SELECT product FROM shop.lines")
    assert plan.columns == ("order_id", "line", "product")
    assert (plan.key, plan.added) == (("order_id", "line"), ("order_id", "line"))


def test_a_star_is_all_columns_in_their_order() -> None:
    assert union_of("SELECT * FROM shop.customers").columns == ("id", "name", "country")
    assert union_of("SELECT *, total + 1 AS t FROM shop.orders").columns[-1] == "t"


def test_branches_are_told_apart_by_a_text_column() -> None:
    plan = union_of(
        "SELECT 'x' AS kind, 'e' AS shard, id FROM east.shop.orders UNION ALL "
        "(SELECT 'x', 'w' AS s, id FROM west.shop.orders WHERE total > 1)"
    )
    assert plan.key == ("id",)
    assert plan.source_column == "shard"
    assert [branch.label for branch in plan.branches] == ["e", "w"]
    assert [branch.condition for branch in plan.branches] == [None, "`total` > 1"]
    assert plan.branches[1].outputs[1] == Output("shard", "'w'")


def test_branches_without_a_text_column_are_told_apart_by_their_source() -> None:
    plan = union_of(
        "SELECT 'x' AS kind, id FROM east.shop.orders UNION ALL "
        "SELECT 'x' AS kind, id FROM west.shop.orders"
    )
    assert plan.key == ("id",)
    assert plan.source_column == "_databus_source"
    assert [branch.label for branch in plan.branches] == ["east.shop.orders", "west.shop.orders"]


@pytest.mark.parametrize(
    ("written", "stream"),
    [
        ("`com.example.shop.Orders`", SourceStream("com.example.shop.Orders")),
        ("`Orders`", SourceStream("Orders")),
        ("east.com.`example.shop.Orders`", SourceStream("com.example.shop.Orders", "east")),
    ],
)
def test_a_source_with_a_name_of_its_own_is_written_in_backquotes(
    written: str, stream: SourceStream
) -> None:
    query = job_of(f"SELECT id FROM {written} AS o WHERE o.total > 1").query
    assert streams_of(query) == [stream]


def test_one_source_may_be_several_branches_when_a_text_tells_them_apart() -> None:
    plan = union_of(
        "SELECT 'small' AS size, id FROM shop.orders WHERE total < 9 UNION ALL "
        "SELECT 'large', id FROM shop.orders WHERE total >= 5"
    )
    assert plan.streams == (SourceStream("shop.orders"),)
    assert plan.key == ("id",)


def test_a_join_is_a_fact_and_what_its_rows_refer_to() -> None:
    plan = join_of(
        "SELECT o.id, c.name AS customer, k.name AS country, total FROM shop.orders o\n"
        "INNER JOIN shop.customers AS c ON (o.customer = c.id) AND c.name <> ''\n"
        "LEFT OUTER JOIN shop.countries k ON k.code = c.country\n"
        "WHERE total > 3 OR k.name IS NULL"
    )
    assert plan.fact == SourceStream("shop.orders")
    first, second = plan.dimensions
    assert (first.name, first.is_left, second.name, second.is_left) == ("r1", False, "r2", True)
    assert first.condition == "(r0.`Customer` = r1.`id`) AND r1.`name` <> ''"
    assert first.references == (Output("id", "r0.`Customer`"),)
    assert second.references == (Output("code", "r1.`country`"),)
    assert plan.condition == "r0.`total` > 3 OR r2.`name` IS NULL"
    assert [output.expression for output in plan.outputs] == [
        "r0.`id`",
        "r1.`name`",
        "r2.`name`",
        "r0.`total`",
    ]
    assert plan.key == ("id",)


def test_a_join_keeps_the_columns_that_it_needs_alone() -> None:
    plan = join_of(
        "SELECT l.product AS p, x.price FROM shop.lines l "
        "LEFT JOIN shop.prices x ON x.product = l.product AND x.day = '2026-01-01'"
    )
    lines, prices = plan.state[SourceStream("shop.lines")], plan.state[SourceStream("shop.prices")]
    assert lines.columns == ("order_id", "line", "product")
    assert prices.columns == ("product", "day", "price")
    assert plan.columns == ("order_id", "line", "p", "price")
    assert plan.added == ("order_id", "line")
    assert plan.dimensions[0].references[1] == Output("day", "'2026-01-01'")


def test_one_source_may_be_joined_twice() -> None:
    plan = join_of(
        "SELECT o.id, s.name AS to_country, b.name AS payer FROM shop.orders o "
        "LEFT JOIN shop.countries s ON s.code = o.shipping "
        "LEFT JOIN shop.countries b ON b.code = o.billing"
    )
    assert plan.streams == (SourceStream("shop.orders"), SourceStream("shop.countries"))
    assert plan.state[SourceStream("shop.countries")].columns == ("code", "name")
