"""The next relay of a list is read when the one before it is gone, behind, or another source."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.promises.chaining.chain import insert, link, stream_of, wait_for_equal
from tests.promises.running import RunningRelay, Shop, running, wait_until
from tests.promises.switching.test_switch import switch

ORDERS = ["shop.orders"]


@dataclass(frozen=True)
class Tree:
    """A relay, two that read it, and one that reads the first of these, or else the second."""

    root: RunningRelay
    a: RunningRelay
    b: RunningRelay
    leaf: RunningRelay

    def wait_until_leaf_reads(self, relay: RunningRelay) -> None:
        wait_until(lambda: followed(self.leaf) == f"databus+{relay.url}", "it", self.leaf.tell)
        wait_until(lambda: self.leaf.get("/health").status == 200, "health", self.leaf.tell)


@pytest.fixture
def tree(shop: Shop, tmp_path: Path) -> Iterator[Tree]:
    root = RunningRelay(tmp_path / "root", shop.settings())
    a, b = (link(tmp_path / name, root.url, sources=ORDERS) for name in "ab")
    leaf = link(tmp_path / "leaf", a.url, b.url, sources=ORDERS)
    with running(root), running(a), running(b), running(leaf):
        for one in (root, a, b, leaf):
            one.start()
        insert(shop, root, *range(20))
        wait_for_equal(root, a, b, leaf)
        yield Tree(root, a, b, leaf)


def followed(relay: RunningRelay) -> str:
    """Return the URI that a relay reads."""
    return str(relay.get("/api/v1/physicalSources/shop").json()["uri"])


def log_of(relay: RunningRelay) -> str:
    return relay.child.log.read_text()


def test_the_next_one_is_read_while_one_is_dead_and_again_the_first(tree: Tree, shop: Shop) -> None:
    assert followed(tree.leaf) == f"databus+{tree.a.url}"
    tree.a.child.kill()
    insert(shop, tree.root, *range(100, 120))
    tree.wait_until_leaf_reads(tree.b)
    wait_for_equal(tree.root, tree.b, tree.leaf)
    assert f"trying the next server, because of this one: shop: relay {tree.a.url}" in log_of(
        tree.leaf
    )
    tree.a.start()
    tree.b.child.kill()
    insert(shop, tree.root, *range(200, 220))
    tree.wait_until_leaf_reads(tree.a)
    wait_for_equal(tree.root, tree.a, tree.leaf)


def test_one_that_is_behind_is_left_for_one_that_is_not(tree: Tree, shop: Shop) -> None:
    tree.leaf.child.stop()
    tree.a.pause()
    tree.leaf.change(uri=[f"databus+{one.url}" for one in (tree.b, tree.a)])
    tree.leaf.start()
    insert(shop, tree.root, *range(100, 120))
    wait_for_equal(tree.root, tree.b, tree.leaf)
    newest = tree.leaf.max_scn()
    assert tree.a.max_scn() < newest
    tree.b.child.kill()
    tree.leaf.wait_for_problem(f"relay {tree.a.url}: it has not reached scn {newest} yet")
    tree.b.start()
    tree.wait_until_leaf_reads(tree.b)
    insert(shop, tree.root, *range(200, 220))
    wait_for_equal(tree.root, tree.b, tree.leaf)
    assert f"relay {tree.a.url}: it has not reached scn {newest} yet" in log_of(tree.leaf)


def test_one_that_came_back_with_another_database_is_left(
    tree: Tree, shop: Shop, tmp_path: Path
) -> None:
    other = Shop(tmp_path / "other.db")
    stranger = RunningRelay(tmp_path / "stranger", other.settings(), http={"port": tree.a.port})
    held = stream_of(tree.leaf)
    tree.a.child.kill()
    with contextlib.closing(other), running(stranger.start()):
        other.insert(400)
        wait_until(lambda: stranger.windows(), "a row", stranger.tell)
        other.insert(*range(500, 600))
        wait_until(lambda: stranger.max_scn() > tree.leaf.max_scn(), "rows", stranger.tell)
        tree.wait_until_leaf_reads(tree.b)
        tree.b.child.kill()
        refused = f"relay {tree.a.url}: it is another source"
        wait_until(lambda: refused in log_of(tree.leaf), "the refusal", tree.leaf.tell)
        # One that does not answer may have what follows: it is asked until it does.
        silent = f"relay {tree.b.url}: does not answer"
        wait_until(
            lambda: silent in log_of(tree.leaf).rpartition(refused)[2], "both", tree.leaf.tell
        )
        assert stream_of(tree.leaf) == held
        tree.b.start()
        tree.wait_until_leaf_reads(tree.b)
        insert(shop, tree.root, *range(100, 120))
        wait_for_equal(tree.root, tree.b, tree.leaf)


def test_relays_that_read_each_other_say_so_and_go_back_to_the_one_that_does_not(
    tree: Tree, shop: Shop
) -> None:
    a, b, root = tree.a, tree.b, tree.root
    for one, other in ((a, b), (b, a)):
        one.child.stop()
        one.change(uri=[f"databus+{root.url}", f"databus+{other.url}"], switch_after_s=1.0)
        one.start()
    switch(a, f"databus+{b.url}")
    wait_until(lambda: reads_through(a) == [id_of(b), id_of(root)], "b", a.tell)
    assert a.get("/health").status == 200
    switch(b, f"databus+{a.url}")
    found = "it reads this relay, itself or through others"
    wait_until(lambda: found in log_of(b) + log_of(a), "the circle", b.tell)
    for one in (a, b):
        wait_until(lambda r=one: reads_through(r)[-1:] == [id_of(root)], "the root", one.tell)  # type: ignore[misc]
    insert(shop, root, *range(100, 120))
    wait_for_equal(root, a, b, tree.leaf)
    wait_until(lambda: reads_through(tree.leaf)[-1:] == [id_of(root)], "the root", tree.leaf.tell)


def ids_of(relay: RunningRelay) -> list[str]:
    found: list[str] = relay.get("/api/v1/physicalSources/shop").json()["relays"]
    return found


def id_of(relay: RunningRelay) -> str:
    return ids_of(relay)[0]


def reads_through(relay: RunningRelay) -> list[str]:
    return ids_of(relay)[1:]


def test_one_that_cannot_read_its_own_source_is_left(tree: Tree, shop: Shop) -> None:
    tree.a.pause()
    tree.wait_until_leaf_reads(tree.b)
    insert(shop, tree.root, *range(100, 120))
    wait_for_equal(tree.root, tree.b, tree.leaf)
    assert f"relay {tree.a.url}: there, capture is paused" in log_of(tree.leaf)
