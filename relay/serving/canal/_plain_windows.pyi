from collections.abc import Callable
from typing import Any

class WindowWriter:
    files: str
    def __init__(
        self,
        know: Callable[[bytes], tuple[Any, bytes, tuple[str]]],
        entry: type[Any],
        kinds: tuple[Any, Any, Any],
        no_table: bytes,
        sizes: tuple[int, int, int],
    ) -> None: ...
    @property
    def server_id(self) -> int: ...
    def take(self, body: bytes, begin: int, found: list[Any]) -> int: ...
