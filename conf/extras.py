"""How what is optional is installed, as error messages say it."""

from __future__ import annotations


def how_to_install(extra: str) -> str:
    """Return how to install an extra of the distribution, which no package index has."""
    return (
        f"it needs the extra `{extra}` of databus-cdc: pip install '.[{extra}]' in a checkout, or "
        f"'FILE.whl[{extra}]' of a wheel"
    )
