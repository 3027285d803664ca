"""The login by user and password, as HTTP has it."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path

from databus.daemon.tokens import private_line
from databus.schemas.errors import SettingsError


def basic_login(user: str, password_file: Path | None) -> dict[str, str]:
    """Return the header of a login, none without a user; raise SettingsError for the file."""
    if not user:
        return {}
    if password_file is None:
        raise SettingsError("user: its password_file is missing")
    password = private_line("password_file", password_file)
    return {"Authorization": "Basic " + b64encode(f"{user}:{password}".encode()).decode()}
