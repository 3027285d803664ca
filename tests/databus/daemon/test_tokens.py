"""Secrets in private files: each is what is written there, and nobody else may read it."""

from __future__ import annotations

from pathlib import Path

import pytest

from databus.daemon.tokens import private_line, private_lines
from databus.relay.sources.masks import MaskKey
from databus.schemas.errors import SettingsError


def private(folder: Path, text: str, mode: int = 0o600) -> Path:
    path = folder / "secret"
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.mark.parametrize("secret", ["pass#word", "#begins", "a b  ", "ends#", "ä#", "# a comment?"])
def test_a_password_is_the_first_line_whole(tmp_path: Path, secret: str) -> None:
    assert private_line("password_file", private(tmp_path, f"{secret}\nanother\n")) == secret


def test_a_key_of_masks_is_whole(tmp_path: Path) -> None:
    secret = "0123456789#abcdef0123456789abcdef"
    assert MaskKey.read(private(tmp_path, secret)).secret == secret.encode()


def test_lines_of_tokens_may_have_comments(tmp_path: Path) -> None:
    text = "# of the shop\n\ntoken-a  # the dashboard\ntoken-b shop.*\n"
    found = private_lines("http.reader_tokens_file", private(tmp_path, text))
    assert found == ["token-a", "token-b shop.*"]


@pytest.mark.parametrize("read", [private_line, private_lines])
def test_a_file_that_others_may_read_is_refused(tmp_path: Path, read: object) -> None:
    with pytest.raises(SettingsError, match="others may read it: chmod 600"):
        read("password_file", private(tmp_path, "secret", 0o644))  # type: ignore[operator]


@pytest.mark.parametrize("text", ["", "\n", "  \nsecret"])
def test_an_empty_line_is_no_password(tmp_path: Path, text: str) -> None:
    with pytest.raises(SettingsError, match="its first line is empty"):
        private_line("password_file", private(tmp_path, text))
