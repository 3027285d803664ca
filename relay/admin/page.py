"""The page at `/`: its files, as they lie in the package, and nothing of the relay.

They say nothing that the sources of this project do not, so anybody may have
them; every figure comes from `/api/v1`, which asks for a token. Their headers
let a browser load nothing from elsewhere, run nothing that stands in a
document, and put the page in nobody's frame.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from databus.conf.settings import HttpSettings
from databus.daemon.access import Role
from databus.daemon.http import ApiHandler
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
    # Kept, but asked for each time: 304 while it is the same, so that an upgraded
    # relay never meets the files of the one before.
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
        """Read a file and make its tag."""
        body = path.read_bytes()
        # Weak: the bytes that are sent may be compressed.
        tag = f'W/"{hashlib.sha256(body).hexdigest()[:20]}"'
        return cls(_TYPES[path.suffix], body, tag)


def read_files(folder: Path = FOLDER) -> dict[str, PageFile]:
    """Return the files of the page by name, read once: a request never names a path."""
    return {
        path.name: PageFile.read(path) for path in sorted(folder.iterdir()) if path.suffix in _TYPES
    }


class PageHandler(ApiHandler):
    """`/` and `/page/<name>`."""

    def initialize(self, limits: HttpSettings, files: dict[str, PageFile]) -> None:  # type: ignore[override]
        """Take the files to choose from."""
        super().initialize(limits)
        self._files = files

    def role_needed(self) -> Role:
        """Nobody in particular: without the page there is nowhere to give a token."""
        return Role.NOBODY

    async def get(self, name: str = INDEX) -> None:
        """Answer with a file, or with 304 to who has it."""
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
    """Return tornado's routes of the page."""
    arguments = {"limits": limits, "files": read_files()}
    return [("/", PageHandler, arguments), ("/page/([^/]+)", PageHandler, arguments)]
