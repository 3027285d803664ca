"""`databus sink export` and `import`."""

from __future__ import annotations

from pathlib import Path

import click

from databus.cli.daemon_options import config_option
from databus.client.sinks.serving.transfer import export_sinks, import_sinks, read_exported
from databus.conf.sinks_beside import load_sinks
from databus.daemon.files import replace_file

file_argument = click.argument("file", type=click.Path(path_type=Path, dir_okay=False))


@click.command()
@file_argument
@config_option("sink")
def export(file: Path, config: Path) -> None:
    """Write the settings of all sinks, their positions and pauses into one private FILE.

    Files that the settings name, such as those with passwords, are not in it. To move sinks, end
    their process first: one that runs goes on behind what is exported.

    Example: `databus sink export sinks.json -c sink.toml`
    """
    found = export_sinks(file, config, load_sinks(config))
    click.echo(f"{file} has {len(found.positions)} positions")


@click.command("import")
@file_argument
@config_option("sink")
@click.option("--replace", is_flag=True, help="Also where a sink has a position.")
def import_(file: Path, config: Path, replace: bool) -> None:
    """Take the positions and pauses of FILE, which `export` wrote, while no process runs the sinks.

    The settings file is written if it is not there. A target that keeps its own position goes on
    from that one.

    Example: `databus sink import sinks.json -c sink.toml`
    """
    found = read_exported(file)
    if not config.exists():
        replace_file(config, found.settings.encode())
        click.echo(f"{config} was written")
    import_sinks(found, load_sinks(config), must_replace=replace)
    click.echo(f"{len(found.positions)} positions were taken")
