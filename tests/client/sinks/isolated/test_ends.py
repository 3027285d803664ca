"""How the end of a process is named."""

from __future__ import annotations

import pytest

from databus.client.sinks.isolated.ends import (
    End,
    EndReason,
    Limits,
    end_from_json,
    end_of_status,
)

LIMITS = Limits(512 << 20, 60.0, 300.0, 64)


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (0, "exit code 0"),
        (3 << 8, "exit code 3"),
        (11, "signal SIGSEGV"),
        (9, "signal SIGKILL"),
        (24, "killed: CPU limit 60 s"),  # SIGXCPU
        (44, "signal 44"),  # it has no name
    ],
)
def test_a_status_of_the_kernel_in_words(status: int, text: str) -> None:
    end = end_of_status(status)
    assert end.text(LIMITS) == text
    assert end_from_json(end.to_json()) == end


def test_each_reason_has_a_text_of_its_own() -> None:
    texts = {End(reason, 1).text(LIMITS) for reason in EndReason}
    assert len(texts) == len(EndReason)
    assert "killed: memory limit 512 MiB" in texts


@pytest.mark.parametrize("data", [b"", b"[]", b'["no", 1]', b'["exit"]', b"{}", b"\xff"])
def test_anything_else_is_no_end(data: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        end_from_json(data)
