"""From a bootstrap answer's bytes to a page for the buffer. Pure.

The page is kept here until the connection machine has seen where it leads: one
that leads nowhere never reaches a consumer.
"""

from __future__ import annotations

from databus.client.machines.connection_messages import PageFacts
from databus.client.puller.buffer_items import BootstrapPage
from databus.client.puller.window_decoder import explain_unknown
from databus.client.subscription import Bindings, schemas_of
from databus.schemas.checkpoint import Checkpoint, ConsumptionMode
from databus.schemas.errors import ProtocolError
from databus.schemas.stream.page_reader import PageReader, RowPage
from databus.schemas.stream.row_reader import SCN, TIMESTAMP_NS, RowWindow


class PageDecoder:
    """Reads the answers to one registration's requests to bootstrap servers, one after another."""

    def __init__(self, max_window_bytes: int) -> None:
        self._reader = PageReader(max_window_bytes)
        self._bindings: Bindings = {}
        self._page: RowPage | None = None
        self._asked: Bindings = {}
        self._since = Checkpoint()

    def use(self, bindings: Bindings) -> None:
        """Decode what comes from now on with these."""
        self._bindings = bindings

    def begin(self, src_ids: tuple[int, ...], checkpoint: Checkpoint) -> None:
        """Begin an answer that was asked for with this checkpoint and these sources."""
        self.reset()
        self._since = checkpoint
        self._asked = {i: bound for i, bound in self._bindings.items() if i in src_ids}
        self._reader.known = schemas_of(self._asked)

    def receive(self, chunk: bytes) -> None:
        """Take the next bytes; raises ProtocolError (WindowTooLargeError among them)."""
        if self._page is not None:
            raise ProtocolError("bytes after the page's checkpoint")
        pages = self._reader.receive(chunk)
        if pages:
            self._page = pages[0]
        if len(pages) > 1:
            raise ProtocolError("two checkpoints in one page")

    def end(self) -> PageFacts | None:
        """Say that the answer is over, return what it is; None when it was empty.

        Raises ProtocolError, or UnknownSchemaError.
        """
        self._reader.close()
        page = self._page
        if page is None:
            if self._reader.pending_events:
                raise ProtocolError("a page without the checkpoint that ends it")
            return None
        if page.unknown:
            explain_unknown(page.unknown, self._asked)
        if self._since.mode is ConsumptionMode.CATCHUP and page.events:
            self._check_scns(page)
        last_ns = page.events[-1][TIMESTAMP_NS] if page.events else -1
        return PageFacts(page.checkpoint, len(page.events), last_ns)

    def take(self, checkpoint: Checkpoint, since_scn: int) -> BootstrapPage:
        """Hand over the page, which leads to this checkpoint."""
        page, self._page = self._page, None
        assert page is not None, "a page is taken after `end` has told of it"
        is_snapshot = checkpoint.mode is ConsumptionMode.SNAPSHOT
        scn = since_scn if is_snapshot else checkpoint.window_scn
        last_ns = page.events[-1][TIMESTAMP_NS] if page.events else -1
        window = RowWindow(scn, last_ns, page.events, page.size_bytes)
        return BootstrapPage(window, self._bindings, checkpoint, since_scn)

    def reset(self) -> None:
        """Forget what came of an answer."""
        self._reader.reset()
        self._page = None

    def _check_scns(self, page: RowPage) -> None:
        """Refuse log rows out of order: older ones would overwrite newer ones."""
        first_scn, last_scn = page.events[0][SCN], page.events[-1][SCN]
        floor_scn = self._since.window_scn + self._since.is_whole_window
        target_scn = self._since.bootstrap_target_scn
        if not page.is_ordered or first_scn < floor_scn or last_scn > target_scn:
            raise ProtocolError(
                f"log rows of scn {first_scn} to {last_scn}, perhaps out of order, where "
                f"{floor_scn} to {target_scn} were asked for"
            )
