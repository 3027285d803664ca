"""`python -m benchmarks.adversity.disarmed --without CHECK --module MODULE -- …`: a weaker product.

Runs a module's `main` with one check switched off. There is no other way to switch one off.
"""

from __future__ import annotations

import importlib
import sys

import click

from benchmarks.adversity.disarming import CHECKS


@click.command()
@click.option("--without", type=click.Choice(sorted(CHECKS)), required=True)
@click.option("--module", required=True)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def main(without: str, module: str, arguments: tuple[str, ...]) -> None:
    """Run a module without one of the product's checks."""
    CHECKS[without].switch_off()
    sys.argv = [module, *arguments]
    importlib.import_module(module).main()


if __name__ == "__main__":
    main()
