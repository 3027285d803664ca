"""Parse a SELECT that a table can be kept equal to; refuse everything else.

The parts do not depend on the sources' columns; `binder` resolves those. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sqlglot import Token, exp

from databus.client.spark.sql.source_text import Clauses, SqlText, without_alias

# The supported parts of a SELECT, a table, a UNION and a JOIN.
_PARTS = frozenset({"expressions", "from", "joins", "where"})
_TABLE_PARTS = frozenset({"this", "db", "catalog", "alias"})
_UNION_PARTS = frozenset({"this", "expression", "distinct"})
_JOIN_PARTS = frozenset({"this", "side", "kind", "on"})

_ONE_ROW = "each row of the target comes from one row of the (first) source"
# By the part's name in sqlglot's tree: its name in SQL, and what to do instead.
_REFUSED_PARTS = {
    "with": ("WITH", "write the one SELECT itself; a step before it is a job file of its own"),
    "distinct": ("DISTINCT", f"{_ONE_ROW}; aggregate when reading the target"),
    "group": ("GROUP BY", f"{_ONE_ROW}; aggregate when reading the target"),
    "having": ("HAVING", f"{_ONE_ROW}; aggregate when reading the target"),
    "order": ("ORDER BY", "a table has no order; sort when reading the target"),
    "sort": ("SORT BY", "a table has no order; sort when reading the target"),
    "cluster": ("CLUSTER BY", "a table has no order; sort when reading the target"),
    "distribute": ("DISTRIBUTE BY", "a table has no order; partition when reading the target"),
    "limit": ("LIMIT", "which rows it takes changes with every row; limit when reading the target"),
    "offset": ("OFFSET", "which rows it takes changes with every row; read the target with it"),
    "qualify": ("QUALIFY", "it compares rows of many changes; use it when reading the target"),
    "windows": ("WINDOW", "it compares rows of many changes; use it when reading the target"),
    "laterals": ("LATERAL VIEW", f"{_ONE_ROW}; explode when reading the target"),
    "hint": ("a hint", "leave it out: the plan of a batch is the job's own"),
    "sample": ("TABLESAMPLE", "leave it out, or take rows by a condition on the key"),
    "version": (
        "VERSION AS OF",
        "a job follows a table; `mode=table` with `asOf` reads an old one",
    ),
    "when": ("TIMESTAMP AS OF", "a job follows a table; `mode=table` with `asOf` reads an old one"),
    "pivots": ("PIVOT", "pivot when reading the target"),
    "by_name": ("UNION ALL BY NAME", "write the columns of all branches in one order"),
    "using": ("USING", "write ON with both columns"),
    "kind": ("SELECT AS STRUCT", "select the columns"),
}
# Functions with another value at each call: a row would keep that of its last change.
_UNSTEADY = frozenset(
    {"current_catalog", "current_database", "current_date", "current_schema", "current_time"}
    | {"current_timestamp", "current_timezone", "current_user", "curdate", "getdate"}
    | {"input_file_name", "localtimestamp", "localtime", "monotonically_increasing_id", "now"}
    | {"rand", "randn", "random", "randstr", "session_user", "shuffle", "spark_partition_id"}
    | {"uniform", "user", "uuid", "version"}
)


@dataclass(frozen=True, slots=True)
class Relation:
    """A source, as one SELECT names it. `physical_source` is empty if the SELECT names none."""

    alias: str
    source: str
    physical_source: str
    at: exp.Table

    @property
    def label(self) -> str:
        """The source's name in messages and source columns."""
        return f"{self.physical_source}.{self.source}" if self.physical_source else self.source


@dataclass(frozen=True, slots=True)
class Item:
    """One item after SELECT: an expression, or a star for all columns (of `node.table`)."""

    name: str
    node: exp.Expr
    tokens: list[Token]
    is_star: bool = False

    @property
    def literal(self) -> str | None:
        """The text of an item that is just a string literal, or None."""
        value = self.node.unalias()
        return value.name if isinstance(value, exp.Literal) and value.is_string else None


@dataclass(frozen=True, slots=True)
class Condition:
    """The condition after WHERE or ON."""

    node: exp.Expr
    tokens: list[Token]


@dataclass(frozen=True, slots=True)
class Joined:
    """A table that is joined to the tables before it."""

    relation: Relation
    is_left: bool
    on: Condition


@dataclass(frozen=True, slots=True)
class Select:
    """One SELECT: of one table and those joined to it."""

    relation: Relation
    joined: tuple[Joined, ...]
    items: tuple[Item, ...]
    where: Condition | None

    @property
    def relations(self) -> list[Relation]:
        """All tables, in the order of the text."""
        return [self.relation, *(one.relation for one in self.joined)]


@dataclass(frozen=True, slots=True)
class Query:
    """A parsed text: one SELECT, or several with UNION ALL between them."""

    text: SqlText
    selects: tuple[Select, ...]

    @property
    def relations(self) -> list[Relation]:
        """All tables of all branches."""
        return [relation for select in self.selects for relation in select.relations]


def parse_query(text: SqlText) -> Query:
    """Return the parts of a SELECT; raises SettingsError that names what is not supported."""
    statements = text.parse()
    if len(statements) != 1:
        what = "no SELECT" if not statements else f"{len(statements)} statements"
        at = statements[1] if len(statements) > 1 else None
        raise text.refusal(at, f"{what}; a job file has one SELECT, and so one target")
    branches = list(_branches(text, statements[0]))
    for branch in branches:
        _check_parts(text, branch)
    selects = [
        _select(text, tree, clauses, is_first=number == 0)
        for number, (tree, clauses) in enumerate(zip(branches, text.clauses(), strict=True))
    ]
    if len(selects) > 1 and (joining := [one for one in selects if one.joined]):
        raise text.refusal(
            joining[0].joined[0].relation.at,
            "JOIN within UNION ALL is not supported: write one job for each branch, or join when "
            "reading the target",
        )
    return Query(text, tuple(selects))


def _branches(text: SqlText, tree: exp.Expr) -> Iterator[exp.Select]:
    # Parentheses around a whole SELECT.
    while isinstance(tree, exp.Subquery) and not tree.alias:
        _refuse_parts(text, tree, frozenset({"this"}))
        tree = tree.this
    if isinstance(tree, exp.Select):
        yield tree
    elif isinstance(tree, exp.Union):
        if tree.args.get("distinct"):
            raise text.refusal(
                tree.expression,
                "UNION without ALL is not supported: it would remove equal rows of different "
                "sources; write UNION ALL, where a source column tells the rows apart",
            )
        _refuse_parts(text, tree, _UNION_PARTS)
        yield from _branches(text, tree.this)
        yield from _branches(text, tree.expression)
    else:
        name = tree.key.upper()
        raise text.refusal(tree, f"{name} is not supported: a job file has one SELECT")


def _check_parts(text: SqlText, tree: exp.Select) -> None:
    _refuse_parts(text, tree, _PARTS)
    for node in tree.walk():
        _check_node(text, node, tree)


def _refuse_parts(text: SqlText, tree: exp.Expr, allowed: frozenset[str]) -> None:
    for key, value in tree.args.items():
        # sqlglot ends names that are Python keywords with an underscore (`from_`).
        part = key.rstrip("_")
        if value and part not in allowed:
            name, instead = _REFUSED_PARTS.get(
                part, (part.upper().replace("_", " "), "leave it out")
            )
            raise text.refusal(_first(value) or tree, f"{name} is not supported: {instead}")


def _first(value: Any) -> exp.Expr | None:
    """Return the first part with a known place in the text."""
    for one in value if isinstance(value, list) else [value]:
        if isinstance(one, exp.Expr) and any("start" in node.meta for node in one.walk()):
            return one
    return None


def _check_node(text: SqlText, node: exp.Expr, tree: exp.Select) -> None:
    if isinstance(node, exp.Query) and node is not tree:
        raise text.refusal(
            node, "a subquery is not supported: write a LEFT JOIN on the other table's primary key"
        )
    if isinstance(node, exp.Window):
        raise text.refusal(
            node,
            "OVER is not supported: it compares rows of many changes; use it when reading the "
            "target",
        )
    if isinstance(node, exp.AggFunc):
        raise text.refusal(
            node,
            f"{node.sql_name()} is an aggregate, but {_ONE_ROW}; aggregate when reading the target",
        )
    is_table = isinstance(node, exp.Values)
    if isinstance(node, (exp.UDTF, exp.Explode, exp.Inline)) and not is_table:
        raise text.refusal(
            node,
            f"{node.key.upper()} makes several rows from one, but {_ONE_ROW}; use it when reading "
            "the target",
        )
    if isinstance(node, (exp.Placeholder, exp.Parameter)):
        raise text.refusal(node, "a parameter has no value here: write the value")
    _check_steady(text, node)


def _check_steady(text: SqlText, node: exp.Expr) -> None:
    if isinstance(node, exp.Func):
        name = node.name if isinstance(node, exp.Anonymous) else node.sql_name()
        if name.lower() in _UNSTEADY:
            raise text.refusal(
                node,
                f"{name.upper()} has another value at each call, but a row is computed only when "
                "it changes; use it when reading the target",
            )


def _select(text: SqlText, tree: exp.Select, clauses: Clauses, *, is_first: bool) -> Select:
    found = tree.find(exp.From)
    # Spark accepts FROM before SELECT, too, but parts are cut out in the usual order.
    if found is None or not clauses.has_from:
        raise text.refusal(tree, "SELECT … FROM a source is needed, in this order")
    joins = tree.args.get("joins") or []
    first = _relation(text, found.this)
    # Each join has a condition, and conditions come in the order of the joins.
    joined = [_joined(text, join) for join in joins]
    where = tree.args.get("where")
    return Select(
        first,
        tuple(
            Joined(relation, is_left, Condition(join.args["on"], tokens))
            for (relation, is_left), join, tokens in zip(
                joined, joins, clauses.conditions, strict=True
            )
        ),
        tuple(_items(text, tree.expressions, clauses, is_first=is_first)),
        Condition(where.this, clauses.where) if where else None,
    )


def _relation(text: SqlText, table: exp.Expr) -> Relation:
    if not isinstance(table, exp.Table) or not isinstance(table.this, exp.Identifier):
        raise text.refusal(
            table,
            "FROM and JOIN take a source by its name, as shop.orders; a name of more parts is "
            "written in backquotes, as `com.example.shop.Orders`",
        )
    _refuse_parts(text, table, _TABLE_PARTS)
    if table.args.get("alias") and table.args["alias"].columns:
        raise text.refusal(
            table, "names of columns after a table's alias are not supported: use AS in the SELECT"
        )
    name = f"{table.db}.{table.name}" if table.db else table.name
    if "." not in name and not table.this.quoted:
        raise text.refusal(
            table,
            f"{name} is not a source: write schema and table, as shop.{name}; a source whose name "
            f"has one part is written in backquotes, as `{name}`",
        )
    return Relation(table.alias or table.name, name, table.catalog, table)


def _joined(text: SqlText, join: exp.Join) -> tuple[Relation, bool]:
    relation = _relation(text, join.this)
    method, side, kind = join.method, join.side, join.kind
    words = " ".join(word for word in (method, side, kind) if word)
    is_left = side == "LEFT" and kind in ("", "OUTER")
    if method or not (is_left or (not side and kind in ("", "INNER", "CROSS"))):
        raise text.refusal(
            join.this,
            f"{words} JOIN is not supported: write the table whose rows the target has first, "
            "then INNER JOIN or LEFT JOIN of dimensions",
        )
    _refuse_parts(text, join, _JOIN_PARTS)
    # sqlglot puts TRUE there if the text has no ON.
    if isinstance(join.args.get("on"), (exp.Boolean, type(None))):
        raise text.refusal(
            join.this,
            f"{relation.label} is joined without ON: write JOIN … ON with the equality on its "
            "primary key",
        )
    return relation, is_left


def _items(
    text: SqlText, nodes: list[exp.Expr], clauses: Clauses, *, is_first: bool
) -> Iterator[Item]:
    """Yield the items; in later branches their place counts, and they need no names."""
    for node, tokens in zip(nodes, clauses.items, strict=True):
        if node.is_star and isinstance(node, (exp.Star, exp.Column)):
            star = node if isinstance(node, exp.Star) else node.this
            if any(star.args.values()):
                raise text.refusal(
                    node, "a star with EXCEPT or REPLACE is not supported: list the columns"
                )
            yield Item("", node, tokens, is_star=True)
            continue
        name = node.alias_or_name if isinstance(node, (exp.Alias, exp.Column)) else ""
        if not name and is_first:
            raise text.refusal(node, "this expression has no name: write `AS name` after it")
        if name.lower().startswith("_databus"):
            raise text.refusal(node, f"{name}: names that begin with _databus are reserved")
        yield Item(name, node, without_alias(tokens, node))
