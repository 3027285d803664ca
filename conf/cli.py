"""The `databus` command: a table of subcommands, each imported when it is used.

The table holds names, not imports: this package knows nobody, and `databus
--help` must not pay for loading tornado.
"""

from __future__ import annotations

from importlib import import_module

import click

from databus import __version__
from databus.schemas.errors import DatabusError

COMMANDS = {
    "client": "databus.client.cli:client",
    "config": "databus.conf.config_cli:config",
    "demo": "databus.demo.cli:demo",
    "relay": "databus.relay.cli:relay",
    "schema": "databus.registry.cli:schema",
    "tail": "databus.client.cli:tail",
}


class LazyGroup(click.Group):
    """A group whose commands are loaded by name, and whose errors are one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the subcommands' names."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:  # noqa: ARG002
        """Import and return one subcommand."""
        if name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[name].partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> object:
        """Run the subcommand; one of our own errors ends as its text, exit 1."""
        try:
            return super().invoke(ctx)
        except DatabusError as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="databus")
def main() -> None:
    """Change data capture: relay, client and tools.

    Example: `databus demo`, then `databus tail shop.orders --from earliest`.
    """


# For `python -m databus.conf.cli`, where the console script is not installed.
if __name__ == "__main__":
    main(prog_name="databus")
