"""What a target's commit log says of the log that its rows are of."""

from __future__ import annotations

from databus.client.spark.targets.commit_log import PART, CommitLog, mark_notes


def test_the_newest_mark_of_each_source_counts_and_may_be_taken_away() -> None:
    log = CommitLog()
    assert log.mark("shop") is None
    for batch, marks in enumerate([{"shop": (7, 70), "lager": (3, 30)}, {"shop": (9, 90)}, {}]):
        log = log.after("app", batch, {"shop": batch}, notes=mark_notes(marks))
    assert (log.mark("shop"), log.mark("lager"), log.mark("other")) == ((9, 90), (3, 30), None)
    log = log.after("load", 0, {"shop": 0}, notes=mark_notes({"shop": None}))
    assert (log.mark("shop"), log.mark("lager")) == (None, (3, 30))


def test_a_part_is_one_until_the_source_is_read_whole() -> None:
    part = CommitLog().after("load", 0, {}, notes={f"{PART}shop.orders": 1})
    assert part.is_part("shop.orders")
    assert not part.is_part("shop.people")
    assert part.without_batches().is_part("shop.orders"), "whatever the table was set back to"
    for app in ("reload:shop.people", "some batches"):
        assert part.after(app, 1, {}).is_part("shop.orders")
    assert not part.after("reload:shop.orders", 1, {}).is_part("shop.orders")
    assert not part.after("load", 1, {}, notes={f"{PART}shop.orders": 0}).is_part("shop.orders")


def test_a_reload_says_of_what_scn_the_rows_and_columns_are_also_of_an_older_one() -> None:
    """A bootstrap server may be behind what the job has read."""
    log = CommitLog()
    for app in ("reload:shop.people", "shape:shop.people", "columns:shop.people"):
        log = log.after(app, 110, {"shop": 110})
    log = log.after("shape:shop.orders", 110, {}).after("query", 4, {"shop": 110})
    for _ in range(2):
        log = log.after("reload:shop.people", 95, {"shop": 100})
        found = [log.applied(f"{kind}:shop.people") for kind in ("reload", "shape", "columns")]
        assert (found, log.positions()) == ([95, 95, 95], {"shop": 100})
    assert log.after("reload:shop.people", 95, {"shop": 96}).positions() == {"shop": 96}
    assert (log.applied("shape:shop.orders"), log.applied("query")) == (110, 4)
    assert CommitLog().after("reload:shop.people", 95, {}).applied("shape:shop.people") is None
