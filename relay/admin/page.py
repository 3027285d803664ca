"""The page at `/`: static files from the package, without data of the relay.

They contain nothing that is not public, so they need no token; all data comes from
`/api/v1`, which requires one. Their headers forbid a browser to load anything from
elsewhere, to run inline scripts, and to show the page in a frame.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from databus.conf.settings import HttpSettings
from databus.daemon.access import Role
from databus.daemon.http.handlers import ApiHandler
from databus.schemas.errors import UnknownCommandError

FOLDER = Path(__file__).parent / "static"
INDEX = "index.html"
_TYPES = {
    ".html": "text/html; charset=UTF-8",
    ".css": "text/css; charset=UTF-8",
    ".js": "text/javascript; charset=UTF-8",
    ".svg": "image/svg+xml",
}
# Trusted types: a string never becomes markup or code, whatever a row holds.
POLICY = (
    "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    # Cached, but revalidated each time (304 if unchanged), so that an upgraded relay is
    # never used with the files of the previous version.
    "Cache-Control": "no-cache",
    "Vary": "Accept-Encoding",
}


@dataclass(frozen=True, slots=True)
class PageFile:
    """One file of the page."""

    content_type: str
    body: bytes
    tag: str

    @classmethod
    def read(cls, path: Path) -> PageFile:
        """Read a file and compute its ETag."""
        body = path.read_bytes()
        # Weak, because the response may be compressed.
        tag = f'W/"{hashlib.sha256(body).hexdigest()[:20]}"'
        return cls(_TYPES[path.suffix], body, tag)


def read_files(folder: Path = FOLDER) -> dict[str, PageFile]:
    """Return the files of the page by name. A request never names a path."""
    return {
        path.name: PageFile.read(path) for path in sorted(folder.iterdir()) if path.suffix in _TYPES
    }


class PageHandler(ApiHandler):
    """`/` and `/page/<name>`."""

    def initialize(self, limits: HttpSettings, files: dict[str, PageFile]) -> None:  # type: ignore[override]
        """Take the files to serve."""
        super().initialize(limits)
        self._files = files

    def role_needed(self) -> Role:
        """No role: without the page there is nowhere to enter a token."""
        return Role.NOBODY

    async def get(self, name: str = INDEX) -> None:
        """Send a file, or 304 if the browser has it."""
        file = self._files.get(name)
        if file is None:
            raise UnknownCommandError(self.request.path)
        for header, value in HEADERS.items():
            self.set_header(header, value)
        self.set_header("ETag", file.tag)
        if file.tag in self.request.headers.get("If-None-Match", ""):
            self.set_status(304)
            await self.finish()
            return
        await self.send(file.body, file.content_type)


def page_routes(limits: HttpSettings) -> list[tuple[str, type[ApiHandler], dict[str, Any]]]:
    """Return the tornado routes of the page."""
    arguments = {"limits": limits, "files": read_files()}
    return [("/", PageHandler, arguments), ("/page/([^/]+)", PageHandler, arguments)]
