"""The order in which servers are tried."""

from __future__ import annotations

from random import Random

from databus.client.machines.server_rotation import ServerOrder

A, B, C = "http://a", "http://b", "http://c"


def test_without_ranks_each_has_its_turn() -> None:
    order = ServerOrder((A, B, C), Random(1))
    first = [order.next() for _ in range(3)]
    assert set(first) == {A, B, C}
    assert [order.next() for _ in range(6)] == first * 2


def test_the_best_is_first_in_each_turn_and_none_is_left_out() -> None:
    order = ServerOrder((A, B, C), Random(1))
    ranks = {A: (2,), B: (1,), C: (3,)}
    assert [order.next(ranks=ranks) for _ in range(3)] == [B, A, C]
    # The one that was just left is not tried again at once, however good.
    assert order.next(ranks={C: (0,)}) != C


def test_one_alone_is_tried_again() -> None:
    order = ServerOrder((A,), Random(1))
    assert [order.next() for _ in range(3)] == [A, A, A]


def test_a_new_one_is_tried_before_those_that_were_tried() -> None:
    order = ServerOrder((A, B), Random(1))
    first = order.next()
    assert order.replace((A, B, C))
    assert not order.replace((A, B, C))
    tried = [order.next(ranks={C: (0,), A: (1,), B: (1,)}) for _ in range(2)]
    assert tried[0] == C
    assert first not in tried


def test_clients_spread_over_servers_that_are_as_good() -> None:
    assert {ServerOrder((A, B, C), Random(seed)).next() for seed in range(20)} == {A, B, C}


def test_without_servers_there_is_none() -> None:
    order = ServerOrder((), Random(1))
    assert order.next() is None
    assert len(order) == 0
