"""The request of docs/coming-from-ptubes.md, sent to a relay."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests import PATIENCE_S
from tests.docs.markdown import block_for
from tests.relay.fakes import insert, transaction
from tests.relay.serving.ptubes.stock import door_of, serve_ptubes
from tools.repository import ROOT

PAGE = ROOT / "docs" / "coming-from-ptubes.md"
PORT = "28332"


def asked(text: str, port: int) -> dict[str, object]:
    assert PORT in text
    command = ["bash", "-c", text.replace(PORT, str(port))]
    found: dict[str, object] = json.loads(subprocess.check_output(command, timeout=PATIENCE_S))
    return found


def test_the_page_asks_as_a_client_does(tmp_path: Path) -> None:
    text = block_for(PAGE, "ask as a client").text
    served = serve_ptubes(tmp_path, ptubes={"task": {"name": "shop-reader"}})
    try:
        served.put(transaction(1, insert(1)))
        port = door_of(served).ports[0]
        assert asked(text, port)["serverStatus"] == "AVAILABLE"
        refused = asked(text.replace("shop-reader", "other"), port)
        assert "no reader task other" in str(refused["errorMessage"])
    finally:
        served.close()
