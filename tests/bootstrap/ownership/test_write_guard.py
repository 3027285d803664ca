"""A process that stands still in a write is ended by the kernel, and no other."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest

from databus.bootstrap.ownership.write_guard import WriteGuard
from tests import PATIENCE_S
from tests.bootstrap.ownership.test_standby import FakeTimer
from tests.promises.running import wait_until

GUARDED = """
import sys, time
from databus.bootstrap.ownership.kill_timer import KillTimer
from databus.bootstrap.ownership.write_guard import WriteGuard
guard = WriteGuard(2.0, KillTimer())
guard.start()
with guard.writing():
    time.sleep(4)  # longer than the limit: it is alive
    if sys.argv[1] == "inside":
        print("writes", flush=True)
        sys.stdin.read()
print("waits", flush=True)
sys.stdin.read()
guard.stop()
print("ended", flush=True)
"""


@pytest.mark.parametrize("where", ["inside", "outside"])
def test_a_process_that_is_stopped_in_a_write_is_killed_and_another_one_is_not(where: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", GUARDED, where], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdin is not None
            assert process.stdout.readline() in (b"writes\n", b"waits\n")
            process.send_signal(signal.SIGSTOP)
            if where == "inside":
                assert process.wait(PATIENCE_S) == -signal.SIGKILL
                return
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(4)
            process.send_signal(signal.SIGCONT)
            process.stdin.close()
            assert process.stdout.readline() == b"ended\n"
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()


def test_the_timer_is_set_while_any_thread_writes_and_put_off_meanwhile() -> None:
    timer = FakeTimer()
    guard = WriteGuard(0.08, timer)
    with guard.writing(), guard.writing():
        assert timer.settings == [0.08]
    assert timer.settings == [0.08, 0]
    guard.start()
    with guard.writing():
        wait_until(lambda: timer.settings.count(0.08) > 4, "a later time")
    # A thread that came in while another one left is guarded, too.
    inside, leave = threading.Event(), threading.Event()

    def write() -> None:
        with guard.writing():
            inside.set()
            leave.wait(PATIENCE_S)

    thread = threading.Thread(target=write)
    with guard.writing():
        thread.start()
        inside.wait(PATIENCE_S)
    assert timer.settings[-1] == 0.08
    leave.set()
    thread.join()
    assert timer.settings[-1] == 0
    guard.stop()
    assert timer.settings[-1] == -1
    with guard.writing():
        assert timer.settings[-1] == -1
