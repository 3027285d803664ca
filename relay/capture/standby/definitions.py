"""The copy of the definitions of tables over time, which a relay needs to go on with the log.

The relay that captures keeps them (`relay/sources/mysql/tables/history.py`). One that stands by
copies the file whenever it has changed, and notes an SCN up to which the copy is complete. When it
takes over, it reads the log from there: statements after that are in the log.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from databus.daemon.files import make_private, replace_file
from databus.leases.checked_json import decode_checked, encode_checked
from databus.relay.sources.upstream.requests import Upstream
from databus.schemas.errors import RingError

COPIED_SUFFIX = ".definitions.json"  # of the file's name, after that of the physical source


class Definitions(NamedTuple):
    """All definitions up to an SCN, and perhaps later ones.

    `tag` changes with the text. `text` is None for somebody who has it; "" if none are kept.
    """

    scn: int
    tag: str
    text: str | None


def read_definitions(path: Path, newest_scn: Callable[[], int], have: str) -> Definitions:
    """Return the definitions in a file, without the text if its tag is `have`.

    The file has what comes before `newest_scn()`: a statement is in it before its window is
    captured. Raises OSError.
    """
    scn = newest_scn()  # first: what comes meanwhile is in the file, too
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        content = b""
    # A line that is being written now is of a later SCN.
    whole = content[: content.rfind(b"\n") + 1]
    tag = f"{len(whole)}-{crc32(whole):08x}"
    return Definitions(scn, tag, None if tag == have else whole.decode())


class DefinitionsCopy:
    """The copy of one physical source's definitions. For the capture thread."""

    def __init__(self, path: Path, noted: Path) -> None:
        """`path` is the file of the definitions; `noted` tells of what it is a copy."""
        self._path, self._noted = path, noted
        self.scn: int | None = None
        """The SCN up to which the copy is complete; None if there is none."""
        self._tag = ""
        self._load()

    def take(self, upstream: Upstream) -> None:
        """Copy them from another relay if they have changed. Raises SourceError, RingError."""
        found = upstream.get(
            upstream.path("/definitions"), _read_answer, {"have": self._tag} if self._tag else {}
        )
        try:
            if found.text:
                make_private(self._path)
                replace_file(self._path, found.text.encode())
            # After the text: with an older SCN, statements are only read a second time.
            noted = encode_checked({"scn": found.scn, "tag": found.tag})
            replace_file(self._noted, noted)
        except OSError as error:
            raise RingError(f"the definitions of tables cannot be saved: {error}") from error
        self.scn, self._tag = (found.scn if found.scn >= 0 else None), found.tag

    def forget(self) -> None:
        """Note that this relay writes the file itself from now on. Raises RingError."""
        self.scn, self._tag = None, ""
        try:
            self._noted.unlink(missing_ok=True)
        except OSError as error:
            raise RingError(f"{self._noted} cannot be removed: {error}") from error

    def _load(self) -> None:
        try:
            values = decode_checked(self._noted.read_bytes())
            self.scn, self._tag = int(values["scn"]), str(values["tag"])
        except (OSError, ValueError, KeyError, TypeError):
            # Nothing is guessed: it is copied anew, or the log is read as at a first start.
            self.scn, self._tag = None, ""
        if self.scn is not None and self.scn < 0:
            self.scn = None


def _read_answer(value: Any) -> Definitions:
    scn, text = value["scn"], value["text"]
    # The lines of the text have checksums, which are compared when they are read.
    return Definitions(
        -1 if scn is None else int(scn), str(value["tag"]), None if text is None else str(text)
    )
