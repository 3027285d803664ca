"""`databus completion`: the script for a shell's completion of `databus` commands."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

PROGRAM = "databus"
VARIABLE = "_DATABUS_COMPLETE"
SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion script of SHELL, to be read by it at its start.

    For zsh: `databus completion zsh > ~/.zfunc/_databus`, with that folder in
    fpath; for fish: `databus completion fish > ~/.config/fish/completions/databus.fish`.

    Example: `databus completion bash >> ~/.bashrc`
    """
    made = get_completion_class(shell)
    assert made is not None
    click.echo(made(context.find_root().command, {}, PROGRAM, VARIABLE).source())
