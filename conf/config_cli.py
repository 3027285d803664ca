"""`databus config`: check a settings file before it is used, and print the reference."""

from __future__ import annotations

from pathlib import Path

import click

from databus.conf.reference import PAGES, settings_reference
from databus.conf.settings import load_settings


@click.group()
def config() -> None:
    """Check and explain settings.

    Example: `databus config check relay.toml --kind relay`
    """


@config.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--kind",
    type=click.Choice(sorted(PAGES)),
    default="relay",
    show_default=True,
    help="What the settings are for.",
)
def check(file: Path, kind: str) -> None:
    """Say whether FILE is right; if not, which key is wrong and why, and exit 1.

    Nothing is started and nothing is connected to.

    Example: `databus config check relay.toml --kind relay`
    """
    model, _ = PAGES[kind]
    load_settings(file, model)
    click.echo(f"{file}: good settings for a {kind}")


@config.command()
def reference() -> None:
    """Print every setting with its default, rule and meaning, as Markdown.

    Example: `databus config reference | less`
    """
    click.echo(settings_reference(), nl=False)
