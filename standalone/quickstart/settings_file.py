"""The file `databus.toml`: written once, recognised when quickstart is typed again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from databus.conf.patterns import escaped
from databus.schemas.errors import SettingsError
from databus.standalone.quickstart.found import Found

NAME = "databus.toml"
_WRITTEN = "# Written by `databus quickstart` for "


def is_written_for(file: Path, label: str) -> bool:
    """Return whether a settings file is there that quickstart wrote for this database.

    Raises SettingsError when another file is there, which it does not overwrite.
    """
    if not file.exists():
        return False
    first, _, _ = file.read_text(encoding="utf-8", errors="replace").partition("\n")
    if not first.startswith(_WRITTEN):
        raise SettingsError(
            f"{file} was not written by `databus quickstart`, which does not overwrite it: use "
            f"another folder (--folder), or start what it says with `databus run -c {file}`"
        )
    written = first.removeprefix(_WRITTEN)
    if written != label:
        raise SettingsError(f"{file} is for {written}, not for {label}: use another --folder")
    return True


def settings_text(found: Found, port: int, bootstrap_port: int) -> str:
    """Return the text of the settings file.

    A JSON string of plain text is a TOML string, too.
    """
    secrets = [f"password_file = {_text(found.password_file.name)}"] if found.password_file else []
    if found.tls_ca:
        secrets.append(f"tls_ca = {_text(str(found.tls_ca))}")
    lines = [
        f"{_WRITTEN}{found.label}",
        "# It is yours to change: `databus config reference relay` lists all settings, and",
        f"# `databus run -c {NAME}` starts what it says.",
        'data_dir = "databus-data"',
        "",
        "[http]",
        f"port = {port}",
        "",
        "[bootstrap]",
        f"port = {bootstrap_port}",
        "",
        "[[physical_sources]]",
        f"name = {_text(found.name)}",
        f"uri = {_text(found.uri)}",
        *secrets,
        "sources = [",
        *(f"    {_text(escaped(source))}," for source in found.sources),
        "]",
    ]
    return "\n".join(lines) + "\n"


def next_steps(sources: Sequence[str], relay_url: str, bootstrap_url: str) -> str:
    """Return what to type next, with the URLs of the servers that run."""
    source = sources[0]
    return f"""
The changes, as they come (in another terminal):

    databus tail {_word(source)} --relay {relay_url} --from earliest

All rows, and then the changes, in Python:

    from databus.client import DatabusClient

    client = DatabusClient(
        ["{relay_url}"], bootstrap_servers=["{bootstrap_url}"], start="beginning"
    )
    for window in client.windows({_text(source)}):
        for event in window.events:
            print(event.op, event.source, event.row)

The page is {relay_url}/. Ctrl-C ends it; the same command goes on.
"""


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def _word(source: str) -> str:
    """Return a source's name as a word of a shell's command."""
    return source if source.replace(".", "").replace("_", "").isalnum() else f"'{source}'"
