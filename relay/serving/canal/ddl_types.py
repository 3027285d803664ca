"""What Canal says of a DDL statement beside its text: the event type, the new name. Pure."""

from __future__ import annotations

import re

from databus.relay.serving.canal.messages import EventType

_COMMENT = re.compile(r"\s*(?:/\*(?!!).*?\*/|--[ \t][^\n]*\n|#[^\n]*\n)", re.S)
_OPENING = re.compile(r"\s*/\*!\d*")
_ALTERED_NAME = re.compile(r"\bRENAME\s+(?:TO\b|AS\b|=|(?!COLUMN\b|INDEX\b|KEY\b))", re.I)
_TEMPORARY = r"(?:OR\s+REPLACE\s+)?(?:GLOBAL\s+)?(?:TEMPORARY\s+)?"
_ALTER = r"ALTER\s+(?:ONLINE\s+|OFFLINE\s+)?(?:IGNORE\s+)?TABLE\b"
_INDEX_WORDS = r"(?:UNIQUE(?:\s+INDEX|\s+KEY)?|(?:FULLTEXT\s+|SPATIAL\s+)?(?:INDEX|KEY))\b"

_NAME = r"(`(?:[^`]|``)+`|[\w$]+)"
_NAMES = rf"(?:{_NAME}\s*\.\s*)?{_NAME}"
_OLD_NAME = _NAMES.replace("(`", "(?:`")
_NEW_NAME = re.compile(
    rf"(?:RENAME\s+TABLES?\s+(?:IF\s+EXISTS\s+)?{_OLD_NAME}\s+TO"
    rf"|{_ALTER}\s*{_OLD_NAME}.*?"
    r"\bRENAME(?:\s+TO\b|\s+AS\b|\s*=|\b(?!\s+(?:COLUMN|INDEX|KEY)\b)))"
    rf"\s*{_NAMES}",
    re.I | re.S,
)

_FORMS = tuple(
    (re.compile(form, re.I | re.S), kind)
    for form, kind in (
        (rf"CREATE\s+{_TEMPORARY}TABLE\b", EventType.CREATE),
        (r"CREATE\s+(?:OR\s+REPLACE\s+)?(?:\w+\s+)?INDEX\b", EventType.CINDEX),
        (r"DROP\s+INDEX\b", EventType.DINDEX),
        (r"DROP\s+(?:TEMPORARY\s+)?TABLES?\b", EventType.ERASE),
        (r"TRUNCATE\b", EventType.TRUNCATE),
        (r"RENAME\s+TABLES?\b", EventType.RENAME),
        (rf"{_ALTER}\s*\S+\s+ADD\s+(?:CONSTRAINT\s+\S+\s+)?{_INDEX_WORDS}", EventType.CINDEX),
        (rf"{_ALTER}\s*\S+\s+DROP\s+(?:INDEX|KEY)\b", EventType.DINDEX),
        (rf"{_ALTER}", EventType.ALTER),
    )
)


def ddl_event_type(statement: str) -> EventType:
    """Return the type of a statement; QUERY for what is about no table."""
    bare = _bare(statement)
    for form, kind in _FORMS:
        if form.match(bare):
            return (
                EventType.RENAME if kind is EventType.ALTER and _ALTERED_NAME.search(bare) else kind
            )
    return EventType.QUERY


def renamed_to(statement: str, database: str) -> str | None:
    """Return the first table's new name as `schema.table`; None if no table gets one."""
    found = _NEW_NAME.match(_bare(statement))
    if found is None:
        return None
    schema, name = (part and _unquoted(part) for part in found.groups())
    return f"{schema or database}.{name}"


def _unquoted(name: str) -> str:
    return name[1:-1].replace("``", "`") if name.startswith("`") else name


def _bare(statement: str) -> str:
    """Return a statement without comments before it."""
    while (found := _COMMENT.match(statement)) is not None:
        statement = statement[found.end() :]
    return _OPENING.sub("", statement, count=1).strip()
