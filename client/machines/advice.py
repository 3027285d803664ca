"""What to do where a client cannot go on, or has to wait. Pure."""

from __future__ import annotations

from databus.client.machines.server_set import Servers
from databus.conf.named_places import NamedPlace
from databus.schemas.errors import PlaceNotFoundError, ScnNotFoundError, ServerError


def explain_none(servers: Servers, sources: tuple[str, ...]) -> ServerError:
    """Return the problem of a client that knows no relay to read from."""
    return ServerError(
        servers.found_at or "the settings",
        f"no relay of {', '.join(sources)} is known: none is listed, or the list cannot be read; "
        "one that is listed is used at once",
    )


def explain_gone(error: ScnNotFoundError) -> ScnNotFoundError:
    """Return the error of a position that no relay holds, without a bootstrap server."""
    advice = (
        "every relay was asked, and no bootstrap server is configured (bootstrap_servers): "
        "configure one, or, where the changes in between "
        'may be missed, remove the checkpoint and use start = "earliest"; '
        "for a group, give `databus group reset NAME --to earliest`"
    )
    return ScnNotFoundError(
        error.scn, error.oldest, f"{error.advice}; {advice}" if error.advice else advice
    )


def explain_unheld(place: NamedPlace, error: ScnNotFoundError) -> PlaceNotFoundError:
    """Return the error of a place to start at that no relay holds."""
    # A bootstrap is no way on: it has rows as they are now, not the changes since a place.
    return PlaceNotFoundError(
        f"start = {place}: every relay was asked, and none holds it; the oldest window held is "
        f"{error.oldest_text}. Start at a later place, at earliest, or at beginning (with a "
        "bootstrap server)"
    )
