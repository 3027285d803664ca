"""A query and the columns of its sources make a plan. Pure.

The target's key is the source's (of a JOIN: the fact's) primary key, so its
columns must be among the selected: those that aren't are added in front.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sqlglot import Token, exp

from databus.client.spark.sql.plan import (
    SOURCE_COLUMN,
    Branch,
    Dimension,
    Feed,
    JoinPlan,
    Mirror,
    Output,
    Plan,
    SourceColumns,
    UnionPlan,
    find_name,
    quoted,
)
from databus.client.spark.sql.query import Condition, Item, Joined, Query, Relation, Select
from databus.client.spark.sql.source_text import SqlText


def bind(query: Query, columns: Mapping[Feed, SourceColumns]) -> Plan:
    """Return the plan; raises SettingsError for names that aren't there, and for keys.

    `columns` has every source of `feeds_of(query)`.
    """
    if query.selects[0].joined:
        return _bind_join(query.text, query.selects[0], columns)
    return _bind_union(query, columns)


def feeds_of(query: Query) -> list[Feed]:
    """Return the sources that a query reads, each once."""
    return list(dict.fromkeys(_feed(relation) for relation in query.relations))


def _feed(relation: Relation) -> Feed:
    return Feed(relation.source, relation.physical_source)


# Names


@dataclass(frozen=True, slots=True)
class _Place:
    """A column: which of the tables has it, and its name there."""

    table: int
    name: str


@dataclass(slots=True)
class _Scope:
    """The tables that an expression may name; `used` are the columns that were named."""

    text: SqlText
    tables: list[tuple[Relation, SourceColumns]]
    are_named: bool  # whether columns are written with their table's short name
    used: set[_Place] = field(default_factory=set)

    def find(self, column: exp.Column) -> _Place:
        """Return what a column means; raises SettingsError when that is nothing, or several."""
        among = self.tables_of(column)
        found = [
            _Place(number, name)
            for number in among
            if (name := find_name(self.tables[number][1].columns, column.name)) is not None
        ]
        if len(found) == 1:
            self.used.add(found[0])
            return found[0]
        if found:
            owners = " and ".join(self.tables[place.table][0].alias for place in found)
            raise self.text.refusal(
                column, f"{column.name} is a column of {owners}: write which, with its table's name"
            )
        have = "; ".join(
            f"{self.tables[number][0].label} has {', '.join(self.tables[number][1].columns)}"
            for number in among
        )
        raise self.text.refusal(column, f"there is no column {column.name}; {have}")

    def written(self, tokens: list[Token], node: exp.Expr) -> str:
        """Return an expression's text with its columns' whole names."""
        return self.text.spliced(
            tokens, node.find_all(exp.Column), lambda column: self.name(self.find(column))
        )

    def name(self, place: _Place) -> str:
        """Return how a column is written."""
        column = quoted(place.name)
        return f"{short_name(place.table)}.{column}" if self.are_named else column

    def before(self, count: int) -> _Scope:
        """Return the scope of the first tables alone."""
        return _Scope(self.text, self.tables[:count], self.are_named, self.used)

    def tables_of(self, column: exp.Column) -> list[int]:
        """Return the numbers of the tables that a column may be of, by what is before its dot."""
        if not column.table:
            return list(range(len(self.tables)))
        parts = [part.name.lower() for part in column.parts[:-1]]
        found = [
            number
            for number, (relation, _) in enumerate(self.tables)
            if parts == [relation.alias.lower()]
            or (not relation.at.alias and ".".join(parts) in _full_names(relation))
        ]
        if not found:
            known = ", ".join(relation.alias for relation, _ in self.tables)
            raise self.text.refusal(
                column, f"{'.'.join(parts)} is no table of this SELECT here; there are: {known}"
            )
        return found[:1]


def short_name(table: int) -> str:
    """Return what a JOIN's tables are called in a plan."""
    return f"r{table}"


def _full_names(relation: Relation) -> set[str]:
    return {relation.source.lower(), relation.label.lower()}


def _check_aliases(text: SqlText, select: Select) -> None:
    seen: set[str] = set()
    for relation in select.relations:
        if relation.alias.lower() in seen:
            raise text.refusal(
                relation.at, f"two tables are called {relation.alias}: give one another name"
            )
        seen.add(relation.alias.lower())


# Outputs and keys


@dataclass(frozen=True, slots=True)
class _Column:
    """An output that is made, and the column of a table that it is nothing but."""

    output: Output
    at: exp.Expr
    place: _Place | None = None
    literal: str | None = None


def _outputs(scope: _Scope, items: Sequence[Item]) -> list[_Column]:
    found: list[_Column] = []
    for item in items:
        if item.is_star:
            found += _star(scope, item)
            continue
        value = item.node.unalias()
        place = scope.find(value) if isinstance(value, exp.Column) else None
        written = scope.written(item.tokens, value)
        found.append(_Column(Output(item.name, written), item.node, place, item.literal))
    return found


def _star(scope: _Scope, item: Item) -> list[_Column]:
    among = (
        scope.tables_of(item.node)
        if isinstance(item.node, exp.Column)
        else range(len(scope.tables))
    )
    places = [_Place(number, name) for number in among for name in scope.tables[number][1].columns]
    scope.used.update(places)
    return [_Column(Output(place.name, scope.name(place)), item.node, place) for place in places]


def _check_names(text: SqlText, columns: Sequence[_Column]) -> None:
    seen: set[str] = set()
    for column in columns:
        name = column.output.name
        if name.lower() in seen:
            raise text.refusal(
                column.at, f"two columns of the target are called {name}: name one with AS"
            )
        seen.add(name.lower())


def _with_key(
    scope: _Scope, columns: list[_Column], relation: Relation, key: Sequence[str]
) -> tuple[list[_Column], list[int], list[str]]:
    """Return the columns with the key among them, where it is, and the names that were added."""
    if not key:
        raise scope.text.refusal(
            relation.at,
            f"{relation.label} has no primary key, so no row of the target could be "
            "told from another",
        )
    missing = [name for name in key if _index_of(columns, name) is None]
    for name in missing:
        taken = find_name([column.output.name for column in columns], name)
        if taken is not None:
            raise scope.text.refusal(
                relation.at,
                f"the key column {name} of {relation.label} is not selected as it is, and another "
                f"column is called {taken}: name that with AS, or select {name} with another name",
            )
    added = [
        _Column(Output(name, scope.name(_Place(0, name))), relation.at, _Place(0, name))
        for name in missing
    ]
    scope.used.update(_Place(0, name) for name in key)
    columns = added + columns
    places = [_index_of(columns, name) for name in key]
    return columns, [place for place in places if place is not None], missing


def _index_of(columns: Sequence[_Column], name: str) -> int | None:
    wanted = _Place(0, name)
    return next((at for at, column in enumerate(columns) if column.place == wanted), None)


# One source, and UNION ALL


@dataclass(frozen=True, slots=True)
class _Half:
    """A branch before it is known how its rows are told apart."""

    select: Select
    columns: list[_Column]
    key_at: list[int]
    added: list[str]
    condition: str | None


def _bind_union(query: Query, columns: Mapping[Feed, SourceColumns]) -> UnionPlan:
    text = query.text
    halves = [_half(text, select, columns[_feed(select.relation)]) for select in query.selects]
    first = halves[0]
    _check_names(text, first.columns)
    for other in halves[1:]:
        _check_alike(text, first, other)
    labels, source_column = _labels(text, halves)
    names = [column.output.name for column in first.columns]
    branches = [_branch(half, names, label) for half, label in zip(halves, labels, strict=True)]
    return UnionPlan(tuple(branches), source_column, tuple(first.added))


def _half(text: SqlText, select: Select, columns: SourceColumns) -> _Half:
    scope = _Scope(text, [(select.relation, columns)], are_named=False)
    made, key_at, added = _with_key(
        scope, _outputs(scope, select.items), select.relation, columns.key
    )
    return _Half(select, made, key_at, added, _condition(scope, select.where))


def _condition(scope: _Scope, where: Condition | None) -> str | None:
    return None if where is None else scope.written(where.tokens, where.node)


def _check_alike(text: SqlText, first: _Half, other: _Half) -> None:
    at = other.select.items[0].node
    if len(first.columns) != len(other.columns):
        raise text.refusal(
            at,
            f"this branch has {len(other.columns)} columns, the first has {len(first.columns)} "
            "(keys that are not selected are added)",
        )
    if first.key_at != other.key_at:
        ours, theirs = (
            ", ".join(half.columns[place].output.name for place in half.key_at)
            for half in (other, first)
        )
        raise text.refusal(
            at,
            f"the key of {other.select.relation.label} ({ours}) is not in the same columns as that "
            f"of {first.select.relation.label} ({theirs}): select both at the same places",
        )


def _labels(text: SqlText, halves: Sequence[_Half]) -> tuple[list[str], str | None]:
    """Return the value of each branch's source column, and the column."""
    if len(halves) == 1:
        return [halves[0].select.relation.label], None
    for place, column in enumerate(halves[0].columns):
        values = [half.columns[place].literal for half in halves]
        given = [value for value in values if value is not None]
        if len({*given}) == len(halves):
            return given, column.output.name
    labels = [half.select.relation.label for half in halves]
    for number, half in enumerate(halves):
        if labels[number] in labels[:number]:
            raise text.refusal(
                half.select.relation.at,
                f"{labels[number]} is read by two branches, whose rows nothing tells apart: "
                "select a text in each, as 'new' AS part",
            )
    return labels, SOURCE_COLUMN


def _branch(half: _Half, names: Sequence[str], label: str) -> Branch:
    outputs = tuple(
        Output(name, column.output.expression)
        for name, column in zip(names, half.columns, strict=True)
    )
    places = [half.columns[at].place for at in half.key_at]
    key = tuple(
        Output(names[at], place.name)
        for at, place in zip(half.key_at, places, strict=True)
        if place is not None
    )
    return Branch(_feed(half.select.relation), label, outputs, half.condition, key)


# JOIN


def _bind_join(text: SqlText, select: Select, columns: Mapping[Feed, SourceColumns]) -> JoinPlan:
    _check_aliases(text, select)
    tables = [(relation, columns[_feed(relation)]) for relation in select.relations]
    scope = _Scope(text, tables, are_named=True)
    dimensions = [
        _dimension(scope.before(number + 2), joined, number + 1)
        for number, joined in enumerate(select.joined)
    ]
    fact_key = tables[0][1].key
    made, key_at, added = _with_key(scope, _outputs(scope, select.items), select.relation, fact_key)
    _check_names(text, made)
    condition = _condition(scope, select.where)
    key = [Output(made[at].output.name, name) for at, name in zip(key_at, fact_key, strict=True)]
    return JoinPlan(
        _feed(select.relation),
        tuple(dimensions),
        tuple(column.output for column in made),
        condition,
        tuple(key),
        _mirrors(scope),
        tuple(added),
    )


def _mirrors(scope: _Scope) -> dict[Feed, Mirror]:
    kept: dict[Feed, set[str]] = {}
    known: dict[Feed, SourceColumns] = {}
    for number, (relation, columns) in enumerate(scope.tables):
        feed = _feed(relation)
        known[feed] = columns
        used = {place.name for place in scope.used if place.table == number}
        kept.setdefault(feed, {*columns.key}).update(used)
    return {
        feed: Mirror(tuple(name for name in known[feed].columns if name in names), known[feed].key)
        for feed, names in kept.items()
    }


def _dimension(scope: _Scope, joined: Joined, number: int) -> Dimension:
    relation, columns = scope.tables[number]
    if not columns.key:
        raise scope.text.refusal(
            relation.at, f"{relation.label} has no primary key, so it cannot be a dimension"
        )
    condition = scope.written(joined.on.tokens, joined.on.node)
    equal = _equalities(scope, joined.on.node, number)
    missing = [name for name in columns.key if name not in equal]
    if missing:
        fact = scope.tables[0][0]
        raise scope.text.refusal(
            relation.at,
            f"{relation.label} is joined without `{', '.join(missing)} = a column of the tables "
            f"before it, or a literal` (its primary key is {', '.join(columns.key)}): a dimension "
            "has at most one row for a row of the tables before it. The target has one row for "
            f"each of {fact.label}, which is first; where the other table has the reference, let "
            "that be first",
        )
    references = tuple(Output(name, equal[name]) for name in columns.key)
    return Dimension(short_name(number), _feed(relation), joined.is_left, condition, references)


def _equalities(scope: _Scope, on: exp.Expr, number: int) -> dict[str, str]:
    """Return, by column of the joined table, the column before it or the literal it equals."""
    found: dict[str, str] = {}
    for term in _terms(on):
        if not isinstance(term, (exp.EQ, exp.NullSafeEQ)):
            continue
        for ours, theirs in ((term.left, term.right), (term.right, term.left)):
            column, other = ours.unnest(), theirs.unnest()
            if not isinstance(column, exp.Column) or scope.find(column).table != number:
                continue
            written = _reference(scope, other, number)
            if written is not None:
                found.setdefault(scope.find(column).name, written)
    return found


def _terms(on: exp.Expr) -> Iterator[exp.Expr]:
    """Yield what all of must hold."""
    node = on.unnest()
    if isinstance(node, exp.And):
        yield from _terms(node.left)
        yield from _terms(node.right)
    else:
        yield node


def _reference(scope: _Scope, node: exp.Expr, number: int) -> str | None:
    if isinstance(node, exp.Column):
        place = scope.find(node)
        return scope.name(place) if place.table != number else None
    if isinstance(node, exp.Literal):
        return scope.text.text[node.meta["start"] : node.meta["end"] + 1]
    return None
