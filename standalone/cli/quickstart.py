"""`databus quickstart`: from a database to a relay that runs, with one command."""

from __future__ import annotations

import os
import sys
import time
import tomllib
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import click

from databus.cli.daemon_options import prepare_daemon
from databus.conf.loading import build_settings, load_settings
from databus.conf.settings import HttpSettings, PhysicalSourceSettings, RelaySettings
from databus.daemon.files import make_folder, replace_file
from databus.daemon.http.server import bind
from databus.doctor.checks import Verdict, has_errors
from databus.relay.sources.kind import check_source
from databus.relay.sources.uri import parse_uri
from databus.schemas.errors import DatabusError, SettingsError, SourceUnavailableError
from databus.standalone.cli.run import tell_urls
from databus.standalone.process import run_both
from databus.standalone.quickstart.found import Found, Needs, Statement
from databus.standalone.quickstart.mysql import Login, Server
from databus.standalone.quickstart.new_tables import new_tables, with_tables
from databus.standalone.quickstart.settings_file import (
    NAME,
    is_written_for,
    next_steps,
    settings_text,
)
from databus.standalone.quickstart.sqlite import look_at_file

RELAY_PORT, BOOTSTRAP_PORT = 11115, 11116
_PORTS = "--port, --bootstrap-port"
_PASSWORD_HINT = (
    "give the user's password with -p, --password-file or --password-env, or with --socket the "
    "server's socket, where root logs in without one"
)


class Database(NamedTuple):
    """A database that a URI names, and how it is looked at and prepared.

    `look_again` needs nobody's password: it looks as the account that captures does. `run`
    returns what to know after it, or "".
    """

    label: str
    look: Callable[[], Found]
    look_again: Callable[[PhysicalSourceSettings], Found]
    run: Callable[[tuple[Statement, ...]], str]


class Wishes(NamedTuple):
    """What the command's options say."""

    folder: Path
    port: int | None
    bootstrap_port: int | None
    is_sure: bool
    only_prints: bool


@click.command()
@click.argument("uri")
@click.option("-y", "--yes", is_flag=True, help="Run the SQL without asking.")
@click.option("--print", "only_prints", is_flag=True, help="Print what is missing; change nothing.")
@click.option("--no-run", is_flag=True, help="Write the settings, and start nothing.")
@click.option("-p", "--ask-password", is_flag=True, help="Ask for the password of the URI's user.")
@click.option(
    "--password-file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="File with that password, first line.",
)
@click.option("--password-env", help="Environment variable with that password.")
@click.option(
    "--socket",
    type=click.Path(path_type=Path),
    help="The server's socket, such as /run/mysqld/mysqld.sock, to look and run the SQL through.",
)
@click.option(
    "--tls-ca",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="CA certificates (PEM) that verify the server; TLS is on when given.",
)
@click.option(
    "--account",
    default="databus",
    show_default=True,
    help="Account that the relay logs in with; it is made if it is not there.",
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(),
    help=f"Folder of {NAME} and all data; default: this one.",
)
@click.option("--port", type=click.IntRange(1, 65535), help="Of the relay; default: 11115.")
@click.option(
    "--bootstrap-port",
    type=click.IntRange(1, 65535),
    help="Of the bootstrap server; default: 11116.",
)
def quickstart(
    uri: str,
    yes: bool,
    only_prints: bool,
    no_run: bool,
    ask_password: bool,
    password_file: Path | None,
    password_env: str | None,
    socket: Path | None,
    tls_ca: Path | None,
    account: str,
    folder: Path,
    port: int | None,
    bootstrap_port: int | None,
) -> None:
    """Capture the database at URI: look, prepare it, write databus.toml, and run.

    URI is mysql://USER@HOST:PORT/DATABASE, for MariaDB too, or sqlite:FILE. All
    tables are captured. The SQL that is missing is shown, and run after a yes. Typed again in the
    same folder, it goes on with what is there, and captures new tables after a yes.

    Example: `databus quickstart sqlite:shop.db`, or
    `databus quickstart mysql://root@127.0.0.1/shop -p`, then
    `databus tail shop.orders --from earliest`.
    """
    wishes = Wishes(folder, port, bootstrap_port, yes, only_prints)
    if parse_uri(uri).scheme == "mysql":
        if sum((ask_password, password_file is not None, password_env is not None)) > 1:
            raise click.UsageError("give one of --ask-password, --password-file, --password-env")
        file = folder / f"{account}.password"
        login = Login(uri=uri, socket=socket, account=account, password_file=file, tls_ca=tls_ca)
        database = _mysql(login, partial(_password, ask_password, password_file, password_env))
    else:
        database = _sqlite(uri, folder)
    file = folder / NAME
    if is_written_for(file, database.label):
        click.echo(f"{file} is there: it goes on with that")
        _take_new_tables(database, file, wishes)
    elif not _prepare(database, wishes):
        return
    if not (no_run or only_prints):
        settings = prepare_daemon(file, RelaySettings, None, port, False, None)
        run_both(_on_port(settings, bootstrap_port), _tell(settings), file.absolute())


def _password(asks: bool, file: Path | None, variable: str | None) -> str:
    """Return the password of the URI's user; empty without one. Raises SettingsError."""
    if asks:
        return str(click.prompt("Password", hide_input=True, err=True))
    if file is not None:
        return file.read_text(encoding="utf-8").partition("\n")[0]
    if variable is not None and variable not in os.environ:
        raise SettingsError(f"--password-env: the variable {variable} is not set")
    return os.environ.get(variable or "", "")


def _mysql(login: Login, password: Callable[[], str]) -> Database:
    """Return the database of a login, whose password is asked for when it is needed."""

    @cache
    def server() -> Server:
        given = password()
        if not given and login.address.user == login.account and login.password_file.exists():
            given = login.kept_password()
        return Server(replace(login, password=given))

    def look_again(source: PhysicalSourceSettings) -> Found:
        as_capture = replace(
            login,
            account=unquote(urlsplit(source.uri).username or login.account),
            password_file=source.password_file or login.password_file,
            tls_ca=source.tls_ca,
        )
        uri, password = f"{as_capture.capture_uri}/{login.database}", as_capture.kept_password()
        return Server(replace(as_capture, uri=uri, password=password)).look()

    return Database(login.label, lambda: server().look(), look_again, lambda sql: server().run(sql))


def _sqlite(uri: str, folder: Path) -> Database:
    parsed = parse_uri(uri)
    if parsed.scheme != "sqlite" or not parsed.path:
        raise SettingsError(f"{uri}: write mysql://USER@HOST:PORT/DATABASE, or sqlite:FILE")
    # The path is from here, and in the file from its folder.
    if folder.resolve() != Path.cwd():
        uri = f"sqlite:{Path(parsed.path).absolute()}"
    return Database(
        uri, lambda: look_at_file(uri, folder), lambda _: look_at_file(uri, folder), _run_nothing
    )


def _run_nothing(_statements: tuple[Statement, ...]) -> str:
    """Return no note: the relay's first start prepares an SQLite file."""
    return ""


def _prepare(database: Database, wishes: Wishes) -> bool:
    """Prepare a database and write the settings; return whether they can be run.

    Raises SettingsError, SourceError, and SystemExit(1) when nothing can be captured.
    """
    ports = wishes.port or RELAY_PORT, wishes.bootstrap_port or BOOTSTRAP_PORT
    if not wishes.only_prints:
        for port in ports:
            bind(HttpSettings(port=port), _PORTS).close()
    try:
        found = database.look()
    except SourceUnavailableError as problem:
        raise SettingsError(f"{problem}; {_PASSWORD_HINT}") from problem
    _show(found)
    if not _agrees(found, wishes):
        return False
    make_folder(wishes.folder)
    if found.password_file is not None:
        # Before the account has it: whatever happens then, it is known.
        replace_file(found.password_file, f"{found.password}\n".encode())
    if note := database.run(found.needs.statements):
        click.echo(f"warning: {note}", err=True)
    text = settings_text(found, *ports)
    _check(text, wishes.folder / NAME)
    replace_file(wishes.folder / NAME, text.encode())
    click.echo(f"wrote {wishes.folder / NAME}")
    return True


def _take_new_tables(database: Database, file: Path, wishes: Wishes) -> None:
    """Look for tables that came after the file was written, and add them to it after a yes."""
    text = file.read_text(encoding="utf-8")
    source, *others = load_settings(file, RelaySettings).physical_sources
    if others:
        return
    try:
        found = database.look_again(source)
    except (DatabusError, OSError) as problem:
        click.echo(f"warning: nobody looked for new tables: {problem}", err=True)
        return
    new = [table.source for table in new_tables(text, found.tables)]
    if not new:
        return
    click.echo(f"new, and not captured: {', '.join(new)}")
    changed = with_tables(text, new)
    if changed is None or not _wants_more(wishes):
        or_sure = "" if wishes.is_sure else ", or give --yes"
        click.echo(f"to capture them, write them into `sources` in {file}{or_sure}")
        return
    replace_file(file, changed.encode())
    click.echo(f"wrote {file}: they are captured now")


def _wants_more(wishes: Wishes) -> bool:
    """Return whether new tables are to be captured; without a terminal nobody is asked."""
    if wishes.only_prints:
        return False
    return wishes.is_sure or (sys.stdin.isatty() and click.confirm("Capture them?", default=False))


def _show(found: Found) -> None:
    """Print the tables, and what is missing; raises SystemExit(1) if nothing can be captured."""
    for table in found.tables:
        if table.problem:
            click.echo(f"not captured: {table.source}: {table.problem}")
        else:
            click.echo(f"captured: {table.source}" + (f"; {table.note}" if table.note else ""))
    needs = found.needs
    if not found.sources:
        raise SettingsError(f"{found.label}: no table can be captured")
    _show_options(needs)
    if needs.problems:
        raise SystemExit(1)
    for text in needs.installs:
        click.echo(f"the first start adds: {text}")
    for statement in needs.statements:
        click.echo(f"    {statement.shown};")


def _show_options(needs: Needs) -> None:
    for problem in needs.problems:
        click.echo(f"error: {problem}", err=True)
    if not needs.option_lines:
        return
    why = "and start the server again; nothing can be captured before"
    if not needs.problems:
        why = "so that it stays so after a restart of the server"
    click.echo(f"Write into the server's option file, {why}:\n")
    click.echo("".join(f"    {line}\n" for line in needs.option_lines))


def _agrees(found: Found, wishes: Wishes) -> bool:
    """Return whether what is missing may be changed; raises SystemExit(1) after a no."""
    needs, file = found.needs, found.password_file
    if wishes.only_prints:
        if file is not None and needs.statements and not file.exists():
            click.echo(
                f"In place of … is a password. This command makes one and keeps it in {file}; if "
                "you run the SQL yourself, choose one, and write it there (chmod 600)."
            )
        return False
    if not (needs.statements or needs.installs):
        click.echo("nothing is missing in the database")
        return True
    what = "Run this SQL?" if needs.statements else "Go on?"
    if wishes.is_sure or click.confirm(what, default=False):
        return True
    click.echo("nothing was changed")
    raise SystemExit(1)


def _check(text: str, file: Path) -> None:
    """Check the source as `databus doctor` does; raises SystemExit(1) if it cannot be captured."""
    settings = build_settings(tomllib.loads(text), RelaySettings, str(file), file=file.absolute())
    (source,) = settings.physical_sources
    checks = check_source(source, time.time(), reads_log=True, newest_scn=None)
    for check in checks:
        if check.verdict is not Verdict.OK:
            click.echo(f"{check.verdict.value}: {check.subject}: {check.text}", err=True)
    if has_errors(checks):
        raise SystemExit(1)


def _on_port(settings: RelaySettings, port: int | None) -> RelaySettings:
    if port is None:
        return settings
    pair = settings.bootstrap.model_copy(update={"port": port})
    return settings.model_copy(update={"bootstrap": pair})


def _tell(settings: RelaySettings) -> Callable[[str, str], None]:
    sources = [name for one in settings.physical_sources for name in one.source_names]

    def tell(relay_url: str, bootstrap_url: str) -> None:
        tell_urls(relay_url, bootstrap_url)
        click.echo(next_steps(sources, relay_url, bootstrap_url))

    return tell
