"""Decodes a bootstrap server's answer into a page for the buffer. Pure.

The page stays here until the connection machine has checked its checkpoint: a page that
does not advance never reaches a consumer.
"""

from __future__ import annotations

from databus.client.machines.connection_messages import PageFacts
from databus.client.puller.buffer_items import BootstrapPage
from databus.client.puller.unknown_schemas import explain_unknown
from databus.client.subscription import Bindings, schemas_of
from databus.schemas.checkpoint import Checkpoint, ConsumptionMode
from databus.schemas.errors import ProtocolError
from databus.schemas.stream.page_reader import PageReader, RowPage
from databus.schemas.stream.row_event import SCN, TIMESTAMP_NS
from databus.schemas.stream.row_reader import RowWindow


class PageDecoder:
    """Decodes the bootstrap pages of one registration, one at a time."""

    def __init__(self, max_window_bytes: int) -> None:
        self._reader = PageReader(max_window_bytes)
        self._bindings: Bindings = {}
        self._page: RowPage | None = None
        self._asked: Bindings = {}
        self._since = Checkpoint()

    def use(self, bindings: Bindings) -> None:
        """Decode with these bindings from now on."""
        self._bindings = bindings

    def begin(self, src_ids: tuple[int, ...], checkpoint: Checkpoint) -> None:
        """Start an answer to a request with this checkpoint and these sources."""
        self.reset()
        self._since = checkpoint
        self._asked = {i: bound for i, bound in self._bindings.items() if i in src_ids}
        self._reader.known = schemas_of(self._asked)

    def receive(self, chunk: bytes) -> None:
        """Decode the next bytes; raise ProtocolError, also as WindowTooLargeError."""
        if self._page is not None:
            raise ProtocolError("bytes after the page's checkpoint")
        pages = self._reader.receive(chunk)
        if pages:
            self._page = pages[0]
        if len(pages) > 1:
            raise ProtocolError("two checkpoints in one page")

    def end(self) -> PageFacts | None:
        """End the answer and return a summary of the page; None if the answer was empty.

        Raises ProtocolError or UnknownSchemaError.
        """
        self._reader.close()
        page = self._page
        if page is None:
            if self._reader.pending_events:
                # Without it the position after these rows is unknown.
                raise ProtocolError("a page without the checkpoint that ends it")
            return None
        if page.unknown:
            explain_unknown(page.unknown, self._asked)
        if self._since.mode is ConsumptionMode.CATCHUP and page.events:
            self._check_scns(page)
        last_ns = page.events[-1][TIMESTAMP_NS] if page.events else -1
        return PageFacts(page.checkpoint, len(page.events), last_ns)

    def take(self, checkpoint: Checkpoint, since_scn: int) -> BootstrapPage:
        """Return the page, with the checkpoint after it."""
        page, self._page = self._page, None
        assert page is not None, "take() comes after end()"
        is_snapshot = checkpoint.mode is ConsumptionMode.SNAPSHOT
        # A page of a snapshot has the snapshot's SCN, though its rows were written at older ones.
        scn = since_scn if is_snapshot else checkpoint.window_scn
        last_ns = page.events[-1][TIMESTAMP_NS] if page.events else -1
        window = RowWindow(scn, last_ns, page.events, page.size_bytes)
        return BootstrapPage(window, self._bindings, checkpoint, since_scn)

    def reset(self) -> None:
        """Forget an unfinished answer."""
        self._reader.reset()
        self._page = None

    def _check_scns(self, page: RowPage) -> None:
        """Reject log rows out of order: older rows would overwrite newer ones."""
        first_scn, last_scn = page.events[0][SCN], page.events[-1][SCN]
        # Within a window the next rows have its SCN; after a whole window theirs is larger.
        floor_scn = self._since.window_scn + self._since.is_whole_window
        target_scn = self._since.bootstrap_target_scn
        if not page.is_ordered or first_scn < floor_scn or last_scn > target_scn:
            raise ProtocolError(
                f"log rows of scn {first_scn} to {last_scn}, perhaps out of order, where "
                f"{floor_scn} to {target_scn} were requested"
            )
