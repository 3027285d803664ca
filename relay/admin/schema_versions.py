"""The API view of a source's schema versions, with their columns and changes. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from databus.registry.differences import differences, is_compatible
from databus.registry.version import SchemaVersion
from databus.relay.admin.models import ColumnChange, SchemaVersionView


def version_views(versions: Sequence[SchemaVersion]) -> list[SchemaVersionView]:
    """Return the views of all versions, the oldest first, each compared with the one before."""
    found = []
    before: str | None = None
    for version in versions:
        changes = () if before is None else differences(before, version.text)
        found.append(
            SchemaVersionView(
                version=version.version,
                schema_id=version.schema_id.hex(),
                since_scn=version.start_scn if version.start_scn > 0 else None,
                is_compatible=before is None or is_compatible(before, version.text),
                changes=[ColumnChange.model_validate(c, from_attributes=True) for c in changes],
                schema_text=version.text,
            )
        )
        before = version.text
    return found
