from databus.schemas.row_reader import RowEvent

def take_rows(
    data: bytes, offset: int, scn: int, src_id: int, digest: bytes, events: list[RowEvent]
) -> int: ...
