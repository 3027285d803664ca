"""Which machines reach an address. Pure."""

from __future__ import annotations

from ipaddress import ip_address

EVERYWHERE = ("", "0.0.0.0", "::")


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address; `localhost` is the only name."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
