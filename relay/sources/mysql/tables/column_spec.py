"""Reads a column of a DDL statement, and derives its type as the server does. Pure.

`integer unsigned` becomes `int(10) unsigned` on MariaDB and `int unsigned` on MySQL;
`varchar(10) character set binary` becomes `varbinary(10)`. The result is the type that
information_schema shows for the column.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from databus.relay.sources.mysql.rows.charsets import BINARY, stored_text
from databus.relay.sources.mysql.rows.layout import DefinedColumn, Dialect, quoted_member
from databus.relay.sources.mysql.tables.ddl_tokens import Reader, Token
from databus.relay.sources.mysql.tables.sql_mode import MAXDB, ORACLE, REAL_AS_FLOAT, is_strict


@dataclass(frozen=True, slots=True)
class Rules:
    """The properties of a server on which the meaning of a statement depends."""

    dialect: Dialect
    version: int = 0  # 101119 for 10.11.19; 0 executes every comment
    explicit_timestamps: bool = True
    utf8: str = "utf8mb3"  # the character set that the name `utf8` stands for
    sql_mode: int = 0
    time_s: int = 0  # when the statement began, since 1970; 0: not known

    def charset(self, name: str) -> str:
        """Return a character set's canonical name."""
        lowered = name.lower()
        return self.utf8 if lowered == "utf8" else lowered

    def charset_of_collation(self, collation: str) -> str | None:
        """Return a collation's character set; None for a collation that several sets share."""
        lowered = collation.lower()
        if lowered == BINARY:
            return BINARY
        prefix = lowered.partition("_")[0]
        if prefix == "utf8":
            return "utf8mb3"
        return prefix if prefix in self.dialect.char_bytes else None

    def char_bytes(self, charset: str) -> int:
        """Return the largest size of a character in bytes; raises ValueError."""
        most = self.dialect.char_bytes.get(charset)
        if most is None:
            raise ValueError(f"character set {charset!r} is not known to the server")
        return most

    @property
    def has_widths(self) -> bool:
        """Whether integer types have a display width."""
        return self.dialect.is_mariadb or 0 < self.version < 80019


@dataclass(frozen=True, slots=True)
class ColumnSpec:
    """A column as described in a statement."""

    name: str
    kind: str = ""
    arguments: tuple[int, ...] = ()
    members: tuple[str, ...] = ()
    is_unsigned: bool = False
    is_zerofill: bool = False
    charset: str | None = None
    is_collated: bool = False  # it has a COLLATE clause
    nullable: bool | None = None
    is_key: bool = False
    cascade: str = ""  # its foreign key's rule that changes rows without logging them
    period: str = ""  # START or END: a row-start or row-end column of a system-versioned table
    place: str | None = None  # the column before it; "" = first
    is_versioned: bool = False
    is_invisible: bool = False
    default: tuple[Token, ...] | None = None  # as written; None = no default
    is_generated: bool = False
    is_counted: bool = False  # AUTO_INCREMENT


_INTEGERS = {
    "tinyint": (4, 3),
    "smallint": (6, 5),
    "mediumint": (9, 8),
    "int": (11, 10),
    "bigint": (20, 20),
}
_SYNONYMS = {
    "integer": "int", "int1": "tinyint", "int2": "smallint", "int3": "mediumint",
    "middleint": "mediumint", "int4": "int", "int8": "bigint", "dec": "decimal",
    "numeric": "decimal", "fixed": "decimal", "float4": "float", "float8": "double",
    "character": "char", "varcharacter": "varchar",
}  # fmt: skip
TEXTS = ("tinytext", "text", "mediumtext", "longtext")
BLOBS = ("tinyblob", "blob", "mediumblob", "longblob")
_GEOMETRIES = frozenset(
    {"geometry", "point", "linestring", "polygon", "multipoint", "multilinestring"}
    | {"multipolygon", "geometrycollection", "geomcollection"}
)
_WITH_CHARSET = frozenset({"char", "varchar", "enum", "set", *TEXTS})
_KNOWN = (
    frozenset({"float", "double", "decimal", "bit", "year", "date", "time", "datetime"})
    | frozenset({"timestamp", "binary", "varbinary", "json", "vector", "uuid", "inet4", "inet6"})
    | _WITH_CHARSET
    | frozenset(_INTEGERS)
    | frozenset(BLOBS)
    | _GEOMETRIES
)
_AS_BINARY = {"char": "binary", "varchar": "varbinary", **dict(zip(TEXTS, BLOBS, strict=True))}
_AS_TEXT = {binary: text for text, binary in _AS_BINARY.items()} | {"json": "longtext"}


def read_column(words: Reader, rules: Rules) -> ColumnSpec:
    """Read a column's name, type, attributes and position; raises ValueError."""
    name = words.column()
    spec = _read_type(words, name, rules)
    while not words.is_at_end and words.peek() not in (",", ")", "PARTITION"):
        spec = _read_attribute(words, spec, rules)
    return spec


def _read_type(words: Reader, name: str, rules: Rules) -> ColumnSpec:
    owner = words.take().text if words.peek(1) == "." and words.peek() else ""
    words.accept(".")
    kind = _kind_of_mode(words.take().text.lower(), owner.lower(), words, rules)
    charset = None
    if kind == "serial":
        return ColumnSpec(name, "bigint", is_unsigned=True, nullable=False, is_counted=True)
    if kind in ("bool", "boolean"):
        return ColumnSpec(name, "tinyint", (1,))
    if kind == "real":
        kind = "float" if rules.sql_mode & REAL_AS_FLOAT else "double"
    elif kind == "long":
        kind = _long_type(words)
    elif kind in ("national", "nchar", "nvarchar"):
        kind = _national_type(words, kind)
        charset = "utf8mb3"
    kind = _SYNONYMS.get(kind, kind)
    if kind == "char" and words.accept("VARYING"):
        kind = "varchar"
    elif kind == "double":
        words.accept("PRECISION")
    if kind not in _KNOWN:
        raise ValueError(f"type {kind!r} is not known")
    arguments: tuple[int, ...] = ()
    members: tuple[str, ...] = ()
    if kind in ("enum", "set"):
        members = _members(words)
    elif words.peek() == "(":
        arguments = _numbers(words)
    return ColumnSpec(name, kind, arguments, members, charset=charset)


# Types of sql_mode=ORACLE.
_OF_ORACLE = {"clob": "longtext", "varchar2": "varchar", "raw": "varbinary"}


def _kind_of_mode(kind: str, owner: str, words: Reader, rules: Rules) -> str:
    """Return a type's standard name, given the SQL mode or the mode prefix of the type."""
    if not rules.dialect.is_mariadb:
        return kind
    is_oracle = bool(rules.sql_mode & ORACLE)
    if kind == "timestamp":
        is_maxdb = owner == "maxdb_schema" or (not owner and rules.sql_mode & MAXDB)
        return "datetime" if is_maxdb else kind
    if kind == "date":
        return "datetime" if owner == "oracle_schema" or (is_oracle and not owner) else kind
    if is_oracle and kind == "number":
        return "decimal" if words.peek() == "(" else "double"
    if is_oracle and kind == "blob" and words.peek() != "(":
        return "longblob"
    return _OF_ORACLE.get(kind, kind) if is_oracle else kind


def _long_type(words: Reader) -> str:
    if words.accept("VARBINARY"):
        return "mediumblob"
    if words.peek(1) != "SET":
        words.accept_any("CHAR", "CHARACTER", "VARCHAR", "VARCHARACTER")
    words.accept("VARYING")
    return "mediumtext"


def _national_type(words: Reader, kind: str) -> str:
    is_varying = kind == "nvarchar"
    word = words.accept_any("CHAR", "CHARACTER", "VARCHAR", "VARCHARACTER")
    is_varying |= word.startswith("VARCHAR") or words.accept("VARYING")
    return "varchar" if is_varying else "char"


def _members(words: Reader) -> tuple[str, ...]:
    words.expect("(")
    found = []
    while True:
        found.append(words.string())
        if words.accept(")"):
            return tuple(found)
        words.expect(",")


def _numbers(words: Reader) -> tuple[int, ...]:
    words.expect("(")
    found = []
    while True:
        text = words.take().text
        whole, _, fraction = text.partition(".")
        if not (whole + fraction).isdigit():
            raise ValueError(f"a length is expected at {text!r}")
        found.append(int(whole or "0"))  # decimal(19.5) is decimal(19)
        if words.accept(")"):
            return tuple(found)
        words.expect(",")


def _read_attribute(words: Reader, spec: ColumnSpec, rules: Rules) -> ColumnSpec:
    word = words.take().upper
    if word in ("UNSIGNED", "ZEROFILL"):
        return replace(spec, is_unsigned=True, is_zerofill=spec.is_zerofill or word == "ZEROFILL")
    if word == "NULL":
        return replace(spec, nullable=True)
    if word == "NOT":
        if words.accept("NULL"):
            return replace(spec, nullable=False)
        if words.accept_any("ENFORCED", "SECONDARY"):
            return spec
        raise words.error()
    if word == "AUTO_INCREMENT":
        return replace(spec, nullable=False, is_counted=True)
    if word in ("PRIMARY", "KEY"):
        words.accept("KEY")
        return replace(spec, is_key=True)
    if word == "FIRST":
        return replace(spec, place="")
    if word == "AFTER":
        return replace(spec, place=words.column())
    if word == "REFERENCES":
        return replace(spec, cascade=_read_reference(words))
    if word == "SERIAL":
        words.expect("DEFAULT", "VALUE")
        return replace(spec, nullable=False, is_counted=True)
    if word in _CHARSET_WORDS:
        return _with_charset(words, word, spec, rules)
    return _skip_attribute(words, word, spec)


_CHARSET_WORDS = frozenset({"CHARACTER", "CHAR", "CHARSET", "COLLATE", "ASCII", "UNICODE", "BYTE"})


def _with_charset(words: Reader, word: str, spec: ColumnSpec, rules: Rules) -> ColumnSpec:
    if word == "COLLATE":
        charset = rules.charset_of_collation(words.take().text)
        return replace(spec, charset=spec.charset or charset, is_collated=True)
    if word in ("ASCII", "UNICODE", "BYTE"):
        charset = {"ASCII": "latin1", "UNICODE": "ucs2", "BYTE": BINARY}[word]
        return replace(spec, charset=charset)
    if word != "CHARSET":
        words.expect("SET")
    return replace(spec, charset=rules.charset(words.take().text))


_FLAGS = frozenset(
    {
        "WITH",
        "WITHOUT",
        "VERSIONING",
        "SIGNED",
        "BINARY",
        "VIRTUAL",
        "STORED",
        "PERSISTENT",
        "ALWAYS",
    }
    | {"GENERATED", "ENFORCED", "RESTRICT", "CASCADE"}
)
_VALUES = frozenset(
    {"COMMENT", "COLUMN_FORMAT", "STORAGE", "SRID", "REF_SYSTEM_ID", "ENGINE_ATTRIBUTE"}
    | {"SECONDARY_ENGINE_ATTRIBUTE"}
)
# Words that end a DEFAULT without parentheses.
_ENDS = (
    _FLAGS | _VALUES | _CHARSET_WORDS
    | {"NOT", "NULL", "AUTO_INCREMENT", "PRIMARY", "KEY", "UNIQUE", "FIRST", "AFTER", "CHECK"}
    | {"REFERENCES", "CONSTRAINT", "ON", "COMPRESSED", "AS", "PARTITION", "", ",", ")"}
    | {"INVISIBLE", "VISIBLE"}
)  # fmt: skip


def _skip_attribute(words: Reader, word: str, spec: ColumnSpec) -> ColumnSpec:
    if word == "WITH" and words.accept("SYSTEM", "VERSIONING"):
        return replace(spec, is_versioned=True)
    if word in ("INVISIBLE", "VISIBLE"):
        return replace(spec, is_invisible=word == "INVISIBLE")
    if word in _FLAGS:
        return spec
    if word == "DEFAULT":
        return replace(spec, default=_read_default(words))
    if word == "AS":
        if words.accept("ROW"):
            return replace(spec, nullable=False, period=words.take().upper)
        words.skip_parentheses()
        return replace(spec, is_generated=True)
    if word == "ON":
        words.expect("UPDATE")
        words.take()
        if words.peek() == "(":
            words.skip_parentheses()
    elif word in ("UNIQUE", "SYSTEM"):
        words.accept_any("KEY", "VERSIONING")
    elif word == "CHECK":
        words.skip_parentheses()
    elif word == "CONSTRAINT":
        if words.peek() != "CHECK":
            words.word()
    elif word == "COMPRESSED":
        if words.accept("="):
            words.take()
    elif word in _VALUES or words.peek() == "=":
        words.accept("=")
        words.take()
    else:
        raise ValueError(f"not understood at {word or spec.name!r} in column {spec.name!r}")
    return spec


def _read_default(words: Reader) -> tuple[Token, ...]:
    begin = words.place
    words.accept_any("-", "+")
    if words.accept("NEXT"):
        words.expect("VALUE", "FOR")
    if words.peek() == "(":
        words.skip_parentheses()
    else:
        words.take()
    # `_utf8mb4'x'`, `'a' 'b'`, `uuid()`, `db.seq`, `1 + 1`
    while not words.is_at_end and (words.is_string() or words.peek() not in _ENDS):
        if words.peek() == "(":
            words.skip_parentheses()
        else:
            words.take()
    return words.since(begin)


def _read_reference(words: Reader) -> str:
    words.table()
    if words.peek() == "(":
        words.skip_parentheses()
    cascade = ""
    while words.accept_any("MATCH", "ON"):
        verb = words.take().upper
        if verb in ("DELETE", "UPDATE"):
            rule = words.take().upper
            if rule in ("SET", "NO"):
                rule = f"{rule} {words.take().upper}"
            if rule not in ("RESTRICT", "NO ACTION"):
                cascade = f"{verb} {rule}"
    return cascade


def defined(spec: ColumnSpec, default_charset: str, rules: Rules) -> DefinedColumn:
    """Return the column as the server defines it; raises ValueError."""
    if spec.is_collated and rules.dialect.is_mariadb:
        # On the server, a binary type with a text collation is text, and JSON has its own set.
        spec = replace(spec, kind=_AS_TEXT.get(spec.kind, spec.kind))
    nullable = spec.nullable
    if nullable is None:
        nullable = spec.kind != "timestamp" or rules.explicit_timestamps
    if spec.kind not in _WITH_CHARSET:
        sql_type, charset = _plain_type(spec, rules), None
        if spec.kind == "json" and rules.dialect.is_mariadb:
            charset = "utf8mb4"
    else:
        charset = spec.charset or default_charset
        if not charset:
            raise ValueError(f"the character set of column {spec.name!r} is not known")
        sql_type = text_type(spec, charset, rules)
        has_name = charset != BINARY or (rules.dialect.is_mariadb and spec.kind in ("enum", "set"))
        charset = charset if has_name else None
    return DefinedColumn(spec.name, sql_type, nullable, charset)


def _plain_type(spec: ColumnSpec, rules: Rules) -> str:
    kind, first = spec.kind, spec.arguments[0] if spec.arguments else 0
    sign = (" unsigned" if spec.is_unsigned else "") + (" zerofill" if spec.is_zerofill else "")
    if kind in _INTEGERS:
        return _integer_type(spec, first, rules) + sign
    if kind == "decimal":
        scale = spec.arguments[1] if len(spec.arguments) > 1 else 0
        return f"decimal({first or 10},{scale}){sign}"
    if kind in ("float", "double"):
        if len(spec.arguments) > 1:
            return f"{kind}({first},{spec.arguments[1]}){sign}"
        return ("double" if first > 24 else kind) + sign
    if kind == "year":
        return f"year({first or 4})" if rules.has_widths else "year"
    if kind == "bit":
        return f"bit({first or 1})"
    if kind in ("time", "datetime", "timestamp"):
        return f"{kind}({first})" if first else kind
    if kind in ("binary", "varbinary"):
        return _sized_binary(kind, spec.arguments, rules)
    if kind == "blob" and (first or (spec.arguments and not rules.dialect.is_mariadb)):
        return of_size(BLOBS, first)
    if kind == "json" and rules.dialect.is_mariadb:
        return "longtext"
    if kind == "vector":
        return f"vector({first or 2048})"
    if kind in ("geometrycollection", "geomcollection"):
        return "geometrycollection" if rules.dialect.is_mariadb else "geomcollection"
    return kind


def _integer_type(spec: ColumnSpec, width: int, rules: Rules) -> str:
    default = _INTEGERS[spec.kind][spec.is_unsigned]
    is_bool = spec.kind == "tinyint" and width == 1 and not spec.is_unsigned
    if rules.has_widths or spec.is_zerofill or is_bool:
        return f"{spec.kind}({width or default})"
    return spec.kind


def _sized_binary(kind: str, arguments: tuple[int, ...], rules: Rules) -> str:
    if kind == "binary":
        return f"binary({arguments[0] if arguments else 1})"
    size = arguments[0]
    return of_size(BLOBS, size) if _is_too_long(size, rules) else f"varbinary({size})"


def _is_too_long(size: int, rules: Rules) -> bool:
    if size <= 65535:
        return False
    if is_strict(rules.sql_mode):
        raise ValueError(f"a column of {size} bytes, in a session that does not allow it")
    return True


def text_type(spec: ColumnSpec, charset: str, rules: Rules) -> str:
    """Return the type of a column of text; raises ValueError."""
    kind = spec.kind
    if kind in ("enum", "set"):
        members = [stored_text(member, charset) for member in spec.members]
        members = members if charset == BINARY else [m.rstrip(" ") for m in members]
        return f"{kind}({','.join(quoted_member(member) for member in members)})"
    is_binary = charset == BINARY
    most = 1 if is_binary else rules.char_bytes(charset)
    first = spec.arguments[0] if spec.arguments else None
    if kind == "varchar":
        if first is None:
            raise ValueError(f"column {spec.name!r} has no length")
        if _is_too_long(first * most, rules):
            return of_size(BLOBS if is_binary else TEXTS, first * most)
    if kind == "text" and (first or (first == 0 and not rules.dialect.is_mariadb)):
        return of_size(BLOBS if is_binary else TEXTS, first * most)
    name = _AS_BINARY[kind] if is_binary else kind
    if kind in ("char", "varchar"):
        return f"{name}({1 if first is None else first})"
    return name


def of_size(names: tuple[str, ...], size: int) -> str:
    """Return the smallest of four types, tiny to long, that holds a number of bytes."""
    return names[(size > 0xFF) + (size > 0xFFFF) + (size > 0xFFFFFF)]
