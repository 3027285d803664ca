"""The `databus` command: a table of subcommands, each imported when it is used.

The table holds names and one line of help each, not imports: this package
imports no other, and `databus --help` must not pay for loading tornado.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

import click
from click.shell_completion import CompletionItem

from databus import __version__
from databus.conf.extras import how_to_install
from databus.schemas.errors import DatabusError

# What the extra `spark` installs.
_OF_SPARK = frozenset({"deltalake", "pyarrow", "pyspark", "sqlalchemy", "sqlglot"})


# Each works as it is pasted, wherever one is.
_TO_BEGIN = """\b
To begin, paste the first line, and the others in a second terminal:
  databus demo
  databus tail shop.orders --from earliest
  databus top
  databus quickstart --help
"""


class CommandAt(NamedTuple):
    """The location of a command (`module:attribute`), and its line in the group's help."""

    target: str
    help: str


COMMANDS = {
    "bootstrap": CommandAt(
        "databus.bootstrap.cli.bootstrap:bootstrap",
        "Bring consumers up to date that begin or fell behind.",
    ),
    "checkpoint": CommandAt(
        "databus.client.cli.checkpoint:checkpoint", "Show, set and compare where consumers are."
    ),
    "client": CommandAt(
        "databus.client.cli.client:client", "Consume with a client made from settings."
    ),
    "completion": CommandAt(
        "databus.cli.completion:completion", "Print what makes a shell complete commands."
    ),
    "config": CommandAt("databus.relay.cli.config:config", "Check and explain settings."),
    "demo": CommandAt("databus.demo.cli:demo", "See a change reach a callback, in a minute."),
    "doctor": CommandAt(
        "databus.relay.cli.doctor:doctor", "Say what is wrong, and what to do about it."
    ),
    "group": CommandAt(
        "databus.client.cli.group:group", "Show, move and resize groups of consumers."
    ),
    "log": CommandAt("databus.relay.cli.log:log", "Look at a relay log, check, cut, export it."),
    "quickstart": CommandAt(
        "databus.standalone.cli.quickstart:quickstart", "Capture a database, from its URI."
    ),
    "relay": CommandAt("databus.relay.cli.relay:relay", "Capture change logs and serve them."),
    "run": CommandAt("databus.standalone.cli.run:run", "Run a relay and its bootstrap pair."),
    "schema": CommandAt("databus.registry.cli:schema", "List, show, check and make schemas."),
    "servers": CommandAt(
        "databus.cli.servers:servers", "Show the servers that clients find by a coordinator."
    ),
    "sink": CommandAt("databus.client.cli.sink:sink", "Write changes to other systems."),
    "source": CommandAt(
        "databus.relay.cli.source:source", "Act on a physical source of a running relay."
    ),
    "spark": CommandAt(
        "databus.client.spark.cli.spark:spark", "Load, follow, verify and repair tables."
    ),
    "tail": CommandAt("databus.client.cli.client:tail", "Print a source's rows as they come."),
    "top": CommandAt("databus.relay.cli.top:top", "Watch a relay in the terminal."),
}


class LazyGroup(click.Group):
    """A group whose `lazy` commands are loaded by name, and whose errors are one line.

    It may have ordinary subcommands too.
    """

    def __init__(self, *args: Any, lazy: Mapping[str, CommandAt], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the subcommands' names."""
        return sorted({*super().list_commands(ctx), *self._lazy})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one subcommand."""
        if cmd_name not in self._lazy:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = self._lazy[cmd_name].target.partition(":")
        try:
            command = getattr(import_module(module), attribute)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] not in _OF_SPARK:
                raise
            text = f"{error}: {how_to_install('spark')}"
            raise click.ClickException(text) from error
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the list of subcommands without importing them."""
        lines = {name: command.get_short_help_str(80) for name, command in self.commands.items()}
        lines |= {name: at.help for name, at in self._lazy.items()}
        with formatter.section("Commands"):
            formatter.write_dl(sorted(lines.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete a subcommand's name without importing any, or one of the group's options."""
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        lines = {name: command.get_short_help_str(80) for name, command in self.commands.items()}
        lines |= {name: at.help for name, at in self._lazy.items()}
        found = sorted(name for name in lines if name.startswith(incomplete))
        return [CompletionItem(name, help=lines[name]) for name in found]

    def invoke(self, ctx: click.Context) -> object:
        """Run the subcommand; print an error of this project in one line and exit with 1."""
        try:
            return super().invoke(ctx)
        except DatabusError as error:
            raise click.ClickException(" ".join(str(error).splitlines())) from error


@click.group(
    cls=LazyGroup,
    lazy=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=_TO_BEGIN,
)
@click.version_option(__version__, prog_name="databus")
def main() -> None:
    """Change data capture: relay, client and tools.

    Example: `databus demo`, then `databus tail shop.orders --from earliest`.
    """


# For `python -m databus.cli.main`, where the console script is not installed.
if __name__ == "__main__":
    main(prog_name="databus")
