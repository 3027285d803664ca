"""Resolve a query's names against the columns of its sources, and return the plan. Pure.

The target's key is the primary key of the source, or of a JOIN's fact. Key columns
that are not selected are added in front.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sqlglot import Token, exp

from databus.client.spark.arrow.row_keys import quoted
from databus.client.spark.sql.plan import (
    SOURCE_COLUMN,
    Branch,
    Dimension,
    JoinPlan,
    Output,
    Plan,
    SourceColumns,
    SourceStream,
    StateColumns,
    UnionPlan,
    find_name,
)
from databus.client.spark.sql.query import Condition, Item, Joined, Query, Relation, Select
from databus.client.spark.sql.source_text import SqlText


def bind(query: Query, columns: Mapping[SourceStream, SourceColumns]) -> Plan:
    """Return the plan; raises SettingsError for unknown names, and for a missing key.

    `columns` has every source of `streams_of(query)`.
    """
    # `parse_query` refuses a JOIN beside UNION ALL, so the first SELECT tells the form.
    if query.selects[0].joined:
        return _bind_join(query.text, query.selects[0], columns)
    return _bind_union(query, columns)


def streams_of(query: Query) -> list[SourceStream]:
    """Return the sources that a query reads, without repetition."""
    return list(dict.fromkeys(_stream(relation) for relation in query.relations))


def _stream(relation: Relation) -> SourceStream:
    return SourceStream(relation.source, relation.physical_source)


# Names


@dataclass(frozen=True, slots=True)
class _Place:
    """A column: the number of its table, and its name there."""

    table: int
    name: str


@dataclass(slots=True)
class _Scope:
    """The tables that an expression may name; `used` collects the columns that it names."""

    text: SqlText
    tables: list[tuple[Relation, SourceColumns]]
    are_named: bool  # columns are written with their table's short name
    used: set[_Place] = field(default_factory=set)

    def find(self, column: exp.Column) -> _Place:
        """Return a name's column; raises SettingsError if there is none, or more than one."""
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
                column, f"{column.name} is a column of {owners}: write the table's name before it"
            )
        have = "; ".join(
            f"{self.tables[number][0].label} has {', '.join(self.tables[number][1].columns)}"
            for number in among
        )
        raise self.text.refusal(column, f"there is no column {column.name}; {have}")

    def written(self, tokens: list[Token], node: exp.Expr) -> str:
        """Return an expression's text with its columns' full names."""
        return self.text.spliced(
            tokens, node.find_all(exp.Column), lambda column: self.name(self.find(column))
        )

    def name(self, place: _Place) -> str:
        """Return a column's full name."""
        column = quoted(place.name)
        return f"{short_name(place.table)}.{column}" if self.are_named else column

    def before(self, count: int) -> _Scope:
        """Return the scope of the first `count` tables."""
        return _Scope(self.text, self.tables[:count], self.are_named, self.used)

    def tables_of(self, column: exp.Column) -> list[int]:
        """Return the numbers of the tables that a column may belong to, by its qualifier."""
        if not column.table:
            return list(range(len(self.tables)))
        parts = [part.name.lower() for part in column.parts[:-1]]
        found = [
            number
            for number, (relation, _) in enumerate(self.tables)
            if parts == [relation.alias.lower()]
            # As in SQL, an alias hides the table's own name.
            or (not relation.at.alias and ".".join(parts) in _full_names(relation))
        ]
        if not found:
            known = ", ".join(relation.alias for relation, _ in self.tables)
            raise self.text.refusal(
                column, f"{'.'.join(parts)} is not a table of this SELECT; its tables are: {known}"
            )
        # An alias is unique in a SELECT; two tables of one name have aliases.
        return found[:1]


def short_name(table: int) -> str:
    """Return the name of a JOIN's table in a plan."""
    return f"r{table}"


def _full_names(relation: Relation) -> set[str]:
    return {relation.source.lower(), relation.label.lower()}


def _check_aliases(text: SqlText, select: Select) -> None:
    seen: set[str] = set()
    for relation in select.relations:
        if relation.alias.lower() in seen:
            raise text.refusal(
                relation.at, f"two tables are called {relation.alias}: give one a different alias"
            )
        seen.add(relation.alias.lower())


# Outputs and keys


@dataclass(frozen=True, slots=True)
class _Column:
    """An output; `place` is set if it is just a column, `literal` if it is just a text."""

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
                column.at, f"two columns of the target are called {name}: rename one with AS"
            )
        seen.add(name.lower())


def _with_key(
    scope: _Scope, columns: list[_Column], relation: Relation, key: Sequence[str]
) -> tuple[list[_Column], list[int], list[str]]:
    """Return the columns with the key among them, the key's places, and the added names."""
    if not key:
        raise scope.text.refusal(
            relation.at,
            f"{relation.label} has no primary key, so the rows of the target would have no key",
        )
    missing = [name for name in key if _index_of(columns, name) is None]
    for name in missing:
        taken = find_name([column.output.name for column in columns], name)
        # The added key column would have the name of another output.
        if taken is not None:
            raise scope.text.refusal(
                relation.at,
                f"the key column {name} of {relation.label} is not selected unchanged, and another "
                f"column is called {taken}: rename that with AS, or select {name} under another "
                "name",
            )
    added = [
        _Column(Output(name, scope.name(_Place(0, name))), relation.at, _Place(0, name))
        for name in missing
    ]
    # The key is read even where it is not selected.
    scope.used.update(_Place(0, name) for name in key)
    columns = added + columns
    places = [_index_of(columns, name) for name in key]
    return columns, [place for place in places if place is not None], missing


def _index_of(columns: Sequence[_Column], name: str) -> int | None:
    wanted = _Place(0, name)
    return next((at for at, column in enumerate(columns) if column.place == wanted), None)


# One source, and UNION ALL


@dataclass(frozen=True, slots=True)
class _UnlabelledBranch:
    """A branch that has no label yet."""

    select: Select
    columns: list[_Column]
    key_at: list[int]
    added: list[str]
    condition: str | None


def _bind_union(query: Query, columns: Mapping[SourceStream, SourceColumns]) -> UnionPlan:
    text = query.text
    branches = [
        _unlabelled(text, select, columns[_stream(select.relation)]) for select in query.selects
    ]
    first = branches[0]
    _check_names(text, first.columns)
    for other in branches[1:]:
        _check_alike(text, first, other)
    labels, source_column = _labels(text, branches)
    # As in SQL, the first branch names the columns of all.
    names = [column.output.name for column in first.columns]
    labelled = [
        _branch(branch, names, label) for branch, label in zip(branches, labels, strict=True)
    ]
    return UnionPlan(tuple(labelled), source_column, tuple(first.added))


def _unlabelled(text: SqlText, select: Select, columns: SourceColumns) -> _UnlabelledBranch:
    scope = _Scope(text, [(select.relation, columns)], are_named=False)
    made, key_at, added = _with_key(
        scope, _outputs(scope, select.items), select.relation, columns.key
    )
    return _UnlabelledBranch(select, made, key_at, added, _condition(scope, select.where))


def _condition(scope: _Scope, where: Condition | None) -> str | None:
    return None if where is None else scope.written(where.tokens, where.node)


def _check_alike(text: SqlText, first: _UnlabelledBranch, other: _UnlabelledBranch) -> None:
    at = other.select.items[0].node
    if len(first.columns) != len(other.columns):
        raise text.refusal(
            at,
            f"this branch has {len(other.columns)} columns, the first has {len(first.columns)} "
            "(key columns that are not selected are added)",
        )
    if first.key_at != other.key_at:
        ours, theirs = (
            ", ".join(branch.columns[place].output.name for place in branch.key_at)
            for branch in (other, first)
        )
        raise text.refusal(
            at,
            f"the key of {other.select.relation.label} ({ours}) is not in the same columns as that "
            f"of {first.select.relation.label} ({theirs}): select both at the same places",
        )


def _labels(text: SqlText, branches: Sequence[_UnlabelledBranch]) -> tuple[list[str], str | None]:
    """Return the label of each branch, and the column that has it."""
    if len(branches) == 1:
        return [branches[0].select.relation.label], None
    for place, column in enumerate(branches[0].columns):
        values = [branch.columns[place].literal for branch in branches]
        given = [value for value in values if value is not None]
        # A column in which each branch selects another text tells the branches apart.
        if len({*given}) == len(branches):
            return given, column.output.name
    labels = [branch.select.relation.label for branch in branches]
    for number, branch in enumerate(branches):
        if labels[number] in labels[:number]:
            raise text.refusal(
                branch.select.relation.at,
                f"two branches read {labels[number]}, and no column tells their rows apart: "
                "select another text in each, as 'new' AS part",
            )
    return labels, SOURCE_COLUMN


def _branch(branch: _UnlabelledBranch, names: Sequence[str], label: str) -> Branch:
    outputs = tuple(
        Output(name, column.output.expression)
        for name, column in zip(names, branch.columns, strict=True)
    )
    places = [branch.columns[at].place for at in branch.key_at]
    key = tuple(
        Output(names[at], place.name)
        for at, place in zip(branch.key_at, places, strict=True)
        if place is not None
    )
    return Branch(_stream(branch.select.relation), label, outputs, branch.condition, key)


# JOIN


def _bind_join(
    text: SqlText, select: Select, columns: Mapping[SourceStream, SourceColumns]
) -> JoinPlan:
    _check_aliases(text, select)
    tables = [(relation, columns[_stream(relation)]) for relation in select.relations]
    scope = _Scope(text, tables, are_named=True)
    dimensions = [
        # ON may name the tables up to its own.
        _dimension(scope.before(number + 2), joined, number + 1)
        for number, joined in enumerate(select.joined)
    ]
    fact_key = tables[0][1].key
    made, key_at, added = _with_key(scope, _outputs(scope, select.items), select.relation, fact_key)
    _check_names(text, made)
    condition = _condition(scope, select.where)
    key = [Output(made[at].output.name, name) for at, name in zip(key_at, fact_key, strict=True)]
    return JoinPlan(
        _stream(select.relation),
        tuple(dimensions),
        tuple(column.output for column in made),
        condition,
        tuple(key),
        _state_columns(scope),
        tuple(added),
    )


def _state_columns(scope: _Scope) -> dict[SourceStream, StateColumns]:
    kept: dict[SourceStream, set[str]] = {}
    known: dict[SourceStream, SourceColumns] = {}
    for number, (relation, columns) in enumerate(scope.tables):
        stream = _stream(relation)
        known[stream] = columns
        used = {place.name for place in scope.used if place.table == number}
        # The key even if nothing names it, as rows are updated by it.
        kept.setdefault(stream, {*columns.key}).update(used)
    return {
        stream: StateColumns(
            tuple(name for name in known[stream].columns if name in names), known[stream].key
        )
        for stream, names in kept.items()
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
            "must have at most one row for each row of the tables before it. The target has one "
            f"row for each row of {fact.label}, the first table; if {relation.label} refers to "
            f"{fact.label}, write {relation.label} first",
        )
    references = tuple(Output(name, equal[name]) for name in columns.key)
    return Dimension(short_name(number), _stream(relation), joined.is_left, condition, references)


def _equalities(scope: _Scope, on: exp.Expr, number: int) -> dict[str, str]:
    """Return, by column of the joined table, the earlier column or the literal that it equals."""
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
    """Yield the terms that are joined by AND."""
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
