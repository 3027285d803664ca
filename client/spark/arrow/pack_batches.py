"""Turn the packs of a bootstrap server into batches of the target: nothing is decoded."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from databus.client.arrow.arrow_types import HEAD_TYPES, RowBatch
from databus.client.arrow.batch_builder import arrays_of
from databus.client.spark.arrow.column_plan import ColumnPlan
from databus.schemas.errors import ProtocolError
from databus.schemas.event.metadata import Op
from databus.schemas.stream.packs import Buffers, Pack


def pack_batch(plan: ColumnPlan, pack: Pack) -> pa.RecordBatch:
    """Return the rows of a pack that are not left out; raises ProtocolError.

    Of `_databus` a pack has only the SCNs.
    """
    head, rows = pack.head, pack.head.rows
    if len(pack.columns) != len(plan.columns) + 1:
        raise ProtocolError(f"a pack has {len(pack.columns)} columns, not {len(plan.columns) + 1}")
    *columns, (_, _, scns) = pack.columns
    try:
        for buffers in columns:
            _check_offsets(rows, buffers)
        arrays = arrays_of(plan.columns, rows, columns)
        change = {
            "op": pa.repeat(pa.scalar(Op.SNAPSHOT, pa.string()), rows),
            "scn": pa.Array.from_buffers(pa.int64(), rows, [None, pa.py_buffer(scns)], 0),
        }
        for array in (*arrays, change["scn"]):
            array.validate()
    except (ValueError, pa.ArrowException) as error:
        raise ProtocolError(f"the pack up to row {head.until_id}: {error}") from error
    heads = tuple(
        change[name] if name in change else pa.nulls(rows, data_type)
        for name, data_type in HEAD_TYPES.items()
    )
    batch = plan.batch(RowBatch(rows, heads, arrays, None, None))
    if not pack.left_out:
        return batch
    is_kept = np.ones(rows, np.bool_)
    is_kept[np.frombuffer(pack.left_out, np.uint32)] = False
    return batch.filter(pa.array(is_kept))


def _check_offsets(rows: int, buffers: Buffers) -> None:
    """Raise ValueError for offsets that point outside of the values: Arrow looks at two of them."""
    _, offsets, values = buffers
    if offsets is None:
        return
    ends = np.frombuffer(offsets, np.int32)
    if len(ends) <= rows or ends[0] < 0 or ends[rows] > len(values):
        raise ValueError("its offsets are not those of its values")
    if np.any(ends[1 : rows + 1] < ends[:rows]):
        raise ValueError("its offsets go back")
