"""A client's credentials and trust for servers, made from `ServerAccessSettings`."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field

from databus.conf.settings import ServerAccessSettings
from databus.daemon.tls import client_context
from databus.daemon.tokens import read_token


@dataclass(frozen=True, slots=True)
class ServerAccess:
    """The token and the TLS context for connections to servers.

    Files and variables are read for each connection, so a new token needs no restart: after a 401
    the next connection uses it.
    """

    settings: ServerAccessSettings = field(default_factory=ServerAccessSettings)

    def check(self) -> None:
        """Raise SettingsError if a file or variable of the settings cannot be used."""
        self.headers()
        if self.settings.tls_ca is not None:
            self.tls()

    def headers(self) -> dict[str, str]:
        """Return the headers of each request; raises SettingsError."""
        token = read_token(self.settings)
        return {"Authorization": f"Bearer {token}"} if token else {}

    def tls(self) -> ssl.SSLContext:
        """Return the TLS context for servers at `https://`; raises SettingsError."""
        return client_context(self.settings.tls_ca)
