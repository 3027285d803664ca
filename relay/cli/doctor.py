"""`databus doctor`: what is wrong before it is noticed, and what to do about it."""

from __future__ import annotations

import json
from pathlib import Path

import click

from databus.doctor.checks import Check, Verdict, has_errors, verdict_line
from databus.doctor.machine import MACHINE, check_packages
from databus.relay.cli.doctor_checks import check_file

USUAL_FILES = ("relay.toml", "bootstrap.toml", "client.toml")
_COLOURS = {Verdict.OK: "green", Verdict.WARNING: "yellow", Verdict.ERROR: "red"}


@click.command()
@click.option(
    "-c",
    "--config",
    "files",
    type=click.Path(path_type=Path),
    multiple=True,
    help="TOML file of a relay, bootstrap pair or client; repeatable. Left out: relay.toml, "
    "bootstrap.toml and client.toml of this folder.",
)
@click.option("--json", "is_json", is_flag=True, help="Print JSON.")
def doctor(files: tuple[Path, ...], is_json: bool) -> None:
    """Look at settings and at all that they name, and say what to do.

    Ports, folders and disks, files' permissions, certificates, packages, the
    databases (grants, variables, log, clock) and the servers that are read
    from. Nothing is changed. Exits with 1 when something will not work.

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
            click.echo(f"no settings were looked at: -c FILE, or one of {', '.join(USUAL_FILES)}")
        click.echo(verdict_line(everything))
    raise SystemExit(1 if has_errors(everything) else 0)


def _print(place: str, checks: list[Check]) -> None:
    click.echo(f"{place}:")
    for check in checks:
        verdict = click.style(f"{check.verdict.value:<8}", fg=_COLOURS[check.verdict])
        click.echo(f"  {verdict}{check.subject}: {check.text}")
