"""`databus config`: checks a settings file, and lists the settings."""

from __future__ import annotations

from pathlib import Path
from pkgutil import resolve_name

import click

from databus.conf.loading import load_settings
from databus.conf.reference import PAGES, kind_of, settings_in_words, settings_reference
from databus.conf.settings import PhysicalSourceSettings
from databus.conf.source_names import name_warnings, unclear_sources
from databus.relay.cli.config_checks import check_what_is_named
from databus.schemas.errors import SettingsError

KINDS = click.Choice(sorted(PAGES))
# Looks at the options of sinks, which only they know; named, as it is a part of the client.
_CHECK_SINKS = "databus.client.sinks.serving.process:check_sinks"


@click.group()
def config() -> None:
    """Check and explain settings.

    Example: `databus config check relay.toml`, or `databus config reference relay ring`
    """


@config.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--kind", type=KINDS, help="What the settings are for; left out, the keys in FILE say it."
)
def check(file: Path, kind: str | None) -> None:
    """Check FILE; on an error print the key and the reason, and exit with 1.

    What it names has to be there: files of passwords, tokens and certificates,
    environment variables. Nothing is connected to; `databus doctor` also checks the
    servers. The code of an isolated sink is loaded, in a process of its own.

    Example: `databus config check relay.toml --kind relay`
    """
    kind = kind or kind_of(file)
    model, _ = PAGES[kind]
    settings = load_settings(file, model)
    for physical in getattr(settings, "physical_sources", ()):
        _check_names(file, physical)
    try:
        check_what_is_named(settings)
        if getattr(settings, "sinks", ()):
            resolve_name(_CHECK_SINKS)(settings, file.absolute())
    except SettingsError as error:
        raise SettingsError(f"{file}: {error}") from error
    click.echo(f"{file}: valid settings for a {kind}")


def _check_names(file: Path, physical: PhysicalSourceSettings) -> None:
    """Print warnings about names; raise SettingsError for one that is likely a mistake.

    A relay takes such a name, because a table may have a dot in its name.
    """
    where = f"{file}: physical source {physical.name}: sources"
    for problem in unclear_sources(physical.named_tables, physical.scheme):
        raise SettingsError(f"{where}: {problem}")
    for warning in name_warnings(physical.named_tables):
        click.echo(f"{where}: warning: {warning}")
    if physical.patterns:  # only the database knows
        shown = ", ".join(physical.patterns.texts)
        click.echo(f"{where}: `databus doctor -c {file}` lists the tables that match {shown}")


@config.command()
@click.argument("kind", type=KINDS, required=False)
@click.argument("word", required=False)
def reference(kind: str | None, word: str | None) -> None:
    """Print the settings of KIND with type, default, rule and meaning.

    With WORD, only settings with it in their name or meaning. Without KIND, the
    whole page of all kinds, as Markdown.

    Example: `databus config reference relay`, or `databus config reference client retries`
    """
    if kind is None:
        click.echo(settings_reference(), nl=False)
        return
    text = settings_in_words(kind, word or "")
    if not text:
        raise SettingsError(f"no setting of a {kind} has {word!r} in its name or meaning")
    click.echo(text, nl=False)
