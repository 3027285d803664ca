"""A server of a test's own, as a process: started, killed, and gone with its files at the end."""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from tests import PATIENCE_S

_LOOK_S = 0.05


class PrivateServer(ABC):
    """A context manager. A kill leaves its files, and `start` goes on with them."""

    TITLE: str

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=f"databus-{self.TITLE.lower()}-"))
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @abstractmethod
    def command(self) -> Sequence[str]:
        """Return the command that runs it."""

    @abstractmethod
    def serves(self) -> bool:
        """Whether it answers."""

    @property
    def program(self) -> str | None:
        """The program, if the first word of the command is only its name."""
        return None

    def start(self) -> None:
        """Start it, and wait until it answers."""
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self.command(), executable=self.program, stdout=log, stderr=log
            )
        deadline = time.monotonic() + PATIENCE_S
        while not self.serves():
            if self._process.poll() is not None or time.monotonic() > deadline:
                told = (self.folder / "log").read_text(errors="replace")[-2000:]
                raise AssertionError(f"{self.TITLE} does not start: {told}")
            time.sleep(_LOOK_S)

    def kill(self) -> None:
        """Kill it, as a power cut would."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(PATIENCE_S)
            self._process = None

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """Let it do nothing for the length of a `with`; its connections stay open."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """End it and remove its files."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
