"""Who may copy the definitions of a source's tables."""

from __future__ import annotations

from pathlib import Path

from tests.relay.fakes import ServedRelay, get

READER, ADMIN = "reader-0123456789abcdef", "admin-0123456789abcdef"
PATH = "/api/v1/physicalSources/shop/definitions"
PROTECTED = {
    "name": "shop",
    "uri": "fake:",
    "sources": ["shop.person"],
    "columns": [{"tables": ["shop.person"], "exclude": ["name"]}],
}


def test_definitions_of_tables_with_protected_columns_are_for_admins(tmp_path: Path) -> None:
    http: dict[str, object] = {"port": 0}
    for role, token in (("reader", READER), ("admin", ADMIN)):
        file = tmp_path / role
        file.write_text(token)
        file.chmod(0o600)
        http[f"{role}_tokens_file"] = file
    relay = ServedRelay(tmp_path, http=http, physical_sources=[PROTECTED])
    try:
        told = [
            get(relay.url, PATH, {"Authorization": f"Bearer {token}"}).status
            for token in (READER, ADMIN)
        ]
    finally:
        relay.close()
    assert told == [403, 200]
