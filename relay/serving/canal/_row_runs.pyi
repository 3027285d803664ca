from typing import Any

def take_rows(
    body: bytes, begin: int, most_bytes: int, writer: Any, schema_id: bytes
) -> tuple[bytes, int, int] | None: ...
