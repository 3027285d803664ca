"""`databus doctor`: finds problems in advance, and says what to do about them.

Relays, bootstrap pairs and clients have different checks. The shared ones (ports, folders,
secrets, servers) are in `databus/doctor/`; the checks of a database are in the package of
its source.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import click

from databus.conf.loading import load_settings
from databus.conf.reference import PAGES, kind_of
from databus.conf.settings import (
    BootstrapSettings,
    ClientSettings,
    HttpSettings,
    ListedServerSettings,
    MaxScnSettings,
    PhysicalSourceSettings,
    RelaySettings,
    ServerAccessSettings,
    Settings,
    is_loopback,
)
from databus.conf.source_names import espresso_names, name_warnings, unclear_sources
from databus.daemon.files import holder_of
from databus.daemon.tokens import make_access
from databus.doctor.checks import (
    Check,
    Verdict,
    error,
    errors,
    has_errors,
    ok,
    verdict_line,
    warning,
)
from databus.doctor.coordinator import SUBJECT, check_coordinator
from databus.doctor.machine import (
    MACHINE,
    Growth,
    Machine,
    check_certificate,
    check_cores,
    check_folder,
    check_key,
    check_port,
    check_secret_env,
    check_secret_file,
)
from databus.doctor.packages import check_packages
from databus.doctor.servers import check_servers
from databus.relay.capture.max_scn import FileMaxScn, SqliteMaxScn
from databus.relay.captured_spans import SPANS_SUFFIX, load_stops
from databus.relay.log.archive.store import ArchiveStore, shown
from databus.relay.log.directory import Found, find_segments, log_folder
from databus.relay.opening import MAX_SCN_DATABASE
from databus.relay.relay import LOCK_FILE
from databus.relay.sources.kind import check_source
from databus.schemas.errors import DatabusError, RelayLogError, RingError, SettingsError

USUAL_FILES = ("databus.toml", "relay.toml", "bootstrap.toml", "client.toml")
_COLOURS = {Verdict.OK: "green", Verdict.WARNING: "yellow", Verdict.ERROR: "red"}


@click.command()
@click.option(
    "-c",
    "--config",
    "files",
    type=click.Path(path_type=Path),
    multiple=True,
    help="TOML file of a relay, bootstrap pair or client; repeatable. Default: databus.toml, "
    "relay.toml, bootstrap.toml and client.toml in this folder.",
)
@click.option("--json", "is_json", is_flag=True, help="Print JSON.")
def doctor(files: tuple[Path, ...], is_json: bool) -> None:
    """Check settings and everything that they name, and say what to do.

    Checks ports, folders and disks, file permissions, certificates, packages,
    databases (grants, variables, log, clock), the coordinator, and the servers
    to read from. Changes nothing, but that a coordinator then has a record
    `doctor`. Exits with 1 if something will not work.

    Example: `databus doctor -c relay.toml`
    """
    chosen = files or tuple(Path(name) for name in USUAL_FILES if Path(name).exists())
    found: dict[str, list[Check]] = {"this machine": check_packages()}
    found |= {str(file): check_file(file, MACHINE) for file in chosen}
    everything = [check for checks in found.values() for check in checks]
    if is_json:
        values = {place: [c.to_json_value() for c in checks] for place, checks in found.items()}
        click.echo(json.dumps(values))
    else:
        for place, checks in found.items():
            _print(place, checks)
        if not chosen:
            click.echo(
                f"no settings were checked: give -c FILE, or one of {', '.join(USUAL_FILES)}"
            )
        click.echo(verdict_line(everything))
    raise SystemExit(1 if has_errors(everything) else 0)


def _print(place: str, checks: list[Check]) -> None:
    click.echo(f"{place}:")
    for check in checks:
        verdict = click.style(f"{check.verdict.value:<8}", fg=_COLOURS[check.verdict])
        click.echo(f"  {verdict}{check.subject}: {check.text}")


PRODUCING = "-producing"  # suffix of a store's lock file
_CHECKPOINTS_BYTES = 1 << 20
_NO_RELAY = (
    "it lists no relay, and `relays` names none: give a relay the same `coordinator`, and start "
    "it; `databus servers list` shows who is listed"
)
_BLOCK_BYTES = 512  # unit of `st_blocks`


def check_file(file: Path, machine: Machine) -> list[Check]:
    """Check everything that a settings file names."""
    try:
        kind = kind_of(file)
        settings = load_settings(file, PAGES[kind][0])
    except SettingsError as problem:
        text = f"{problem}; `databus config reference` lists all settings"
        return [error("settings", text)]
    return [ok("settings", f"{file}: valid settings for a {kind}"), *_checks(settings, machine)]


def _checks(settings: Settings, machine: Machine) -> list[Check]:
    if isinstance(settings, RelaySettings):
        return list(check_relay(settings, machine))
    if isinstance(settings, BootstrapSettings):
        return list(check_bootstrap(settings, machine))
    assert isinstance(settings, ClientSettings)
    return list(check_client(settings, machine))


def check_relay(settings: RelaySettings, machine: Machine) -> Iterator[Check]:
    """Check a relay's port, folder, secrets and databases."""
    yield from check_cores(settings.serving_processes, machine)
    # The port of a running daemon is in use by itself.
    is_running = bool(holder_of(settings.data_dir / LOCK_FILE))
    yield check_port(settings.http, "relay", is_running=is_running)
    yield from check_http(settings.http, machine)
    yield from check_listing(settings, machine)
    rings = [
        (settings.data_dir / f"{p.name}.ring", p.ring_bytes) for p in settings.physical_sources
    ]
    # Ring files are sparse: only the blocks not yet allocated are still needed.
    missing = sum(max(0, size - _allocated_bytes(path)) for path, size in rings)
    growth = Growth(missing, f"{len(rings)} rings")
    yield from check_folder("data_dir", settings.data_dir, growth, machine)
    for source in settings.physical_sources:
        yield from check_relay_log(source, settings.data_dir, machine)
        yield from check_names(source)
        yield from check_secrets(source, machine)
        try:
            newest = saved_scn(settings.max_scn, settings.data_dir, source.name)
        except RingError as problem:
            yield error(f"source {source.name}", str(problem))
            newest = None
        yield from check_source(source, machine.now_s(), reads_log=True, newest_scn=newest)
        yield from check_stopped(source, settings.data_dir)
    # `databus run` has the pair without the table, too; who runs a relay alone has neither.
    if "bootstrap" in settings.model_fields_set:
        yield from check_pair(settings, machine, is_running=is_running)


def check_pair(settings: RelaySettings, machine: Machine, *, is_running: bool) -> Iterator[Check]:
    """Check the port and the folder of the bootstrap pair that `databus run` has."""
    pair = settings.bootstrap
    folder = pair.data_dir or settings.data_dir / "bootstrap"
    http = settings.http.model_copy(update={"port": pair.port})
    found = check_port(http, "bootstrap", is_running=is_running)
    text = found.text.replace("http.port", "bootstrap.port")
    yield replace(found, subject="bootstrap.port", text=text)
    stores = [folder / f"{source.name}.db" for source in settings.physical_sources]
    missing = sum(max(0, pair.log_retention_bytes - _allocated_bytes(one)) for one in stores)
    growth = Growth(missing, f"the logs of {len(stores)} stores", is_sure=False)
    yield from check_folder("bootstrap.data_dir", folder, growth, machine)


def check_stopped(source: PhysicalSourceSettings, data_dir: Path) -> Iterator[Check]:
    """Report the tables that are stopped alone."""
    subject = f"source {source.name}"
    try:
        stops = load_stops(data_dir / f"{source.name}{SPANS_SUFFIX}")
    except RingError as problem:
        yield error(subject, str(problem))
        return
    for stop in stops:
        yield error(subject, str(stop.error()))


def check_relay_log(
    source: PhysicalSourceSettings, data_dir: Path, machine: Machine
) -> Iterator[Check]:
    """Check the folder and the disk of a relay log, if there is one."""
    if source.log is None:
        return
    folder = log_folder(data_dir, source)
    used = sum(_allocated_bytes(path) for path in folder.rglob("*") if path.is_file())
    growth = Growth(max(0, source.log.retention_bytes - used), "the relay log", is_sure=False)
    yield from check_folder(f"source {source.name}: log", folder, growth, machine)
    yield check_segments(f"source {source.name}: log", folder)
    if source.log.archive is not None:
        yield check_archive(f"source {source.name}: archive", source.log.archive)


def check_segments(name: str, folder: Path) -> Check:
    """Check how the segments of a relay log begin and end, but not every byte of them."""
    advice = "`databus log verify` checks every byte, and names sound copies in the archive"
    try:
        found = find_segments(folder) if folder.is_dir() else Found((), (), (), ())
    except RelayLogError as problem:
        return error(name, str(problem))
    damaged = [
        *map(str, found.unreadable),
        *(f"{s.path}: {s.damage}" for s in found.log if s.damage and (s.is_sealed or s.has_more)),
    ]
    if found.before:
        last = found.before[-1].path
        damaged.append(f"there is a hole after {last}: what is before it is not read from here")
    if damaged:
        return warning(name, f"{'; '.join(damaged)}. {advice}")
    return ok(name, f"{len(found.log)} segments begin and end well; {advice}")


def check_archive(name: str, uri: str) -> Check:
    """Write an object into an archive, read it and delete it."""
    try:
        ArchiveStore(uri).check()
    except DatabusError as problem:
        return error(name, str(problem))
    return ok(name, f"{shown(uri)} can be written and read")


def check_bootstrap(settings: BootstrapSettings, machine: Machine) -> Iterator[Check]:
    """Check a bootstrap pair's port, folder, relays, secrets and databases."""
    stores = [settings.data_dir / f"{source.name}.db" for source in settings.physical_sources]
    is_running = any(holder_of(Path(f"{path}{PRODUCING}")) for path in stores)
    yield check_port(settings.http, "bootstrap", is_running=is_running)
    yield from check_http(settings.http, machine)
    yield from check_listing(settings, machine)
    missing = sum(max(0, settings.log_retention_bytes - _allocated_bytes(p)) for p in stores)
    growth = Growth(missing, f"the logs of {len(stores)} stores", is_sure=False)
    yield from check_folder("data_dir", settings.data_dir, growth, machine)
    names = [name for source in settings.physical_sources for name in source.source_names]
    yield from check_access(settings.relay_access, machine)
    yield from check_servers("relays", settings.relays, settings.relay_access, names, machine)
    for source in settings.physical_sources:
        yield from check_names(source)
        yield from check_secrets(source, machine)
        yield from check_source(source, machine.now_s(), reads_log=False, newest_scn=None)


def check_client(settings: ClientSettings, machine: Machine) -> Iterator[Check]:
    """Check a client's servers, secrets and checkpoint folder."""
    yield from check_access(settings.access, machine)
    relays, servers = settings.relays, settings.bootstrap_servers
    if settings.coordinator:
        writes = bool(settings.group)
        checks, listed = check_coordinator(settings.coordinator, machine, writes=writes)
        yield from checks
        if not relays:
            relays = tuple(one.url for one in listed if one.kind == "relay")
            servers = (*servers, *(one.url for one in listed if one.kind == "bootstrap"))
            if not relays and not has_errors(checks):
                yield error(SUBJECT, _NO_RELAY)
    yield from check_servers("relays", relays, settings.access, (), machine)
    if servers:
        yield from check_servers("bootstrap_servers", servers, settings.access, (), machine)
    else:
        yield warning(
            "bootstrap_servers",
            "none: a client that pauses longer than a relay's ring reaches back stops with an "
            "error; add a bootstrap server",
        )
    if settings.checkpoint_dir is None:
        text = "none: after a restart the client begins at `start` again; set a folder"
        yield warning("checkpoint_dir", text)
    else:
        growth = Growth(_CHECKPOINTS_BYTES, "checkpoints")
        yield from check_folder("checkpoint_dir", settings.checkpoint_dir, growth, machine)


def check_listing(settings: ListedServerSettings, machine: Machine) -> Iterator[Check]:
    """Check the coordinator in which a server lists itself, if there is one."""
    if settings.coordinator:
        checks, _ = check_coordinator(settings.coordinator, machine, writes=True)
        yield from checks


def check_http(http: HttpSettings, machine: Machine) -> Iterator[Check]:
    """Check a server's certificate and tokens, and who can reach it."""
    if http.tls_cert is not None and http.tls_key is not None:
        yield check_certificate("http.tls_cert", http.tls_cert, machine)
        yield check_key("http.tls_key", http.tls_cert, http.tls_key)
    files = {"reader": http.reader_tokens_file, "admin": http.admin_tokens_file}
    for kind, file in files.items():
        if file is not None:
            yield check_secret_file(f"http.{kind}_tokens_file", file, is_refused=True)
    yield from errors("http tokens", _token_problems(http), "good" if http.has_tokens else "")
    # A server that only this machine can reach may be open.
    if is_loopback(http.host):
        return
    if not http.has_tokens:
        text = (
            f"anyone who reaches {http.host}:{http.port} can read all rows; set reader_tokens_file"
        )
        yield warning("http.open_to_all", text)
    if http.tls_cert is None:
        yield warning("http.tls_cert", f"rows and tokens leave {http.host} unencrypted; set it")


def check_access(access: ServerAccessSettings, machine: Machine) -> Iterator[Check]:
    """Check the credentials for other servers."""
    if access.token_file is not None:
        yield check_secret_file("token_file", access.token_file, is_refused=True)
    if access.token_env is not None:
        yield check_secret_env("token_env", access.token_env)
    if access.tls_ca is not None:
        yield check_certificate("tls_ca", access.tls_ca, machine)


def check_names(source: PhysicalSourceSettings) -> Iterator[Check]:
    """Check the names of a source's sources, also for stock Databus 2 clients."""
    subject, tables = f"source {source.name}: sources", source.named_tables
    for problem in (*unclear_sources(tables, source.scheme), *name_warnings(tables)):
        yield warning(subject, problem)
    refused = espresso_names(table for table in tables if not table.has_own_name)
    if refused:
        rest = f" and {len(refused) - 1} more" if len(refused) > 1 else ""
        text = (
            f"stock Databus 2 clients cannot read {refused[0]}{rest}, whose names have two parts; "
            'for them give each a name of its own: { name = "com.example.Name", table = "…" }'
        )
        yield ok(subject, text)


def check_secrets(source: PhysicalSourceSettings, machine: Machine) -> Iterator[Check]:
    """Check a source's password and certificates."""
    subject = f"source {source.name}"
    if source.password_file is not None:
        yield check_secret_file(f"{subject}: password_file", source.password_file)
    if source.mask_key_file is not None:
        file = source.mask_key_file
        yield check_secret_file(f"{subject}: mask_key_file", file, is_refused=True)
    if source.password_env is not None:
        yield check_secret_env(f"{subject}: password_env", source.password_env)
    for name, path in (("tls_ca", source.tls_ca), ("tls_cert", source.tls_cert)):
        if path is not None:
            yield check_certificate(f"{subject}: {name}", path, machine)
    if source.tls_cert is not None and source.tls_key is not None:
        yield check_key(f"{subject}: tls_key", source.tls_cert, source.tls_key)


def saved_scn(settings: MaxScnSettings, folder: Path, name: str) -> int | None:
    """Return MaxSCN, None without one; raise RingError. Creates nothing."""
    if settings.store == "file":
        return FileMaxScn(folder / f"{name}.scn").load()
    database = folder / MAX_SCN_DATABASE
    return SqliteMaxScn(database, name).load() if database.exists() else None


def _token_problems(http: HttpSettings) -> Iterable[str]:
    try:
        make_access(http)
    except DatabusError as problem:
        return [str(problem)]
    return []


def _allocated_bytes(path: Path) -> int:
    try:
        return path.stat().st_blocks * _BLOCK_BYTES
    except OSError:
        return 0
