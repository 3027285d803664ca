"""Read a range of windows from LinkedIn's relays as Arrow batches; runs in a task.

Such a relay knows no end of a range. So the task takes whole windows up to the end that was
planned, and nothing behind it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa

from databus.client.spark.arrow.event_batches import EventBatches
from databus.client.spark.arrow.row_types import WriterSchema
from databus.client.spark.options import SourceOptions
from databus.client.spark.planning.ranges import LogRange
from databus.client.spark.planning.server_pool import check_patience
from databus.client.spark.planning.stock_stream import StockPage, StockStream
from databus.client.spark.planning.stock_windows import StockWindows
from databus.client.spark.source.bootstrap_pages import take_answer
from databus.schemas.errors import ScnNotFoundError, ServerError, SettingsError

POLL_S = 0.2


def read_stock_windows(
    one: LogRange,
    stream: StockStream,
    columns: EventBatches,
    newer_schemas: Callable[[], Iterable[WriterSchema]],
    options: SourceOptions,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a range, decoded by `columns`; see `take_answer` for `newer_schemas`.

    Raises SettingsError for windows that no relay holds any more; NoAnswerError for windows
    that have not come within the retry time; ServerError for those that are not as planned.
    """
    scn, moved_s = one.from_scn, time.monotonic()
    while scn != one.to_scn:
        page = _next_page(stream, one, scn)
        if not page.windows:
            waited_s = time.monotonic() - moved_s
            check_patience(page.answer.server, scn, one.to_scn, waited_s, options.retry_seconds)
            time.sleep(POLL_S)
            continue
        scn = _cut(page, one.to_scn)
        take_answer(page.answer, columns, newer_schemas)
        if columns.rows >= options.batch_rows:
            yield from columns.flush()
        moved_s = time.monotonic()
    yield from columns.flush()


def _next_page(stream: StockStream, one: LogRange, scn: int) -> StockPage:
    try:
        return stream.after(scn)
    except ScnNotFoundError as error:
        raise SettingsError(
            f"{one.physical_source}: a batch was planned with the windows from scn {scn} to "
            f"{one.to_scn}, but no relay holds them any more ({error}); {StockWindows.gone_advice}"
        ) from error


def _cut(page: StockPage, to_scn: int) -> int:
    """Remove everything from an answer but whole windows up to `to_scn`; return the last SCN."""
    last = None
    for window in page.windows:
        if window.scn > to_scn:
            break
        last = window
    # The planner ended the batch at a window of its relay.
    if last is None or (last.scn != to_scn and last is not page.windows[-1]):
        raise ServerError(
            page.answer.server,
            f"has no window of scn {to_scn}, up to which a batch was planned: does it read the "
            "same database as the relay that planned it, and with the same windows?",
        )
    del page.answer.body[last.end :]
    return last.scn
