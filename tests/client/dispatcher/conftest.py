"""Runs each test with compiled callers and with Python's."""

from __future__ import annotations

from typing import Any

import pytest

from databus.client.dispatcher import callbacks
from databus.client.dispatcher._calls import Caller
from databus.client.dispatcher.calls import PythonCaller


@pytest.fixture(params=[Caller, PythonCaller], ids=["compiled", "python"], autouse=True)
def _caller(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    made: Any = request.param
    monkeypatch.setattr(callbacks, "Caller", made)
