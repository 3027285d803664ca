"""Archives for the tests: a folder, and a bucket of a real server.

Load with `pytest_plugins = ["tests.relay.log.archive.archives"]`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.s3_server import S3Server


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


@pytest.fixture(params=["file", "s3"])
def uri(request: pytest.FixtureRequest, tmp_path: Path, s3: S3Server) -> str:
    """Return the URI of an empty archive."""
    if request.param == "file":
        return (tmp_path / "archive").as_uri()
    return s3.uri(tmp_path.name)
