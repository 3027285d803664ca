"""A chain as each of its relays shows it, also when one of them is killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.promises.chaining.chain import chain
from tests.promises.running import RunningRelay, Shop, wait_until


def shown(relay: RunningRelay) -> Any:
    (found,) = relay.get("/api/v1/chain").json()["chains"]
    return found


def test_each_relay_shows_those_above_it_and_names_the_one_that_is_killed(
    shop: Shop, tmp_path: Path
) -> None:
    shop.insert(1, 2, 3)
    first = RunningRelay(tmp_path / "relay-1", shop.settings(), name="relay-1")
    with chain(first, tmp_path) as relays:
        a, b, c = relays
        wait_until(lambda: shown(c)["depth"] == 2, "the whole chain", c.tell)
        links = shown(c)["links"]
        assert [one["url"] for one in links] == ["", b.url, a.url]
        assert [one["reads"] for one in links] == [b.url, a.url, ""]
        assert (shown(b)["depth"], shown(a)["depth"]) == (1, 0)
        assert len({one["instance"] for one in links}) == 3
        assert {one["newestScn"] for one in links} == {links[0]["newestScn"]} != {None}
        b.child.kill()
        wait_until(lambda: bool(shown(c)["links"][-1]["problem"]), "its end", c.tell)
        found = shown(c)
        assert (found["depth"], [one["url"] for one in found["links"]]) == (None, ["", b.url])
        assert "does not answer" in found["links"][-1]["problem"]
