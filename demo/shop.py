"""The demo's shop: a random stream of transactions from a seed. No I/O.

Every row change of the shop has a number, 1, 2, 3 …, in commit order. A row has the number
of its last change (`change_no`) and its time (`changed_ns`), so a reader of the changes can
tell whether one is missing, doubled or early. A delete event has the row as it was before,
so the shop updates a row's stamps right before deleting it: the number of a deletion is
its row's `change_no` + 1.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal

SOURCES = ("shop.customers", "shop.products", "shop.orders")

# Each database's types for the columns of TABLES. SQLite has no exact decimal and no date
# type: text keeps every digit.
TYPES = {
    "sqlite": {
        "id": "INTEGER",
        "text": "TEXT",
        "money": "TEXT",
        "moment": "TEXT",
        "big": "INTEGER",
    },
    "mysql": {
        "id": "BIGINT",
        "text": "VARCHAR(100)",
        "money": "DECIMAL(10,2)",
        "moment": "DATETIME(3)",
        "big": "BIGINT",
    },
}
STAMPS = "change_no {big} NOT NULL, changed_ns {big} NOT NULL"
TABLES = {
    "customers": "id {id} PRIMARY KEY, name {text} NOT NULL, email {text}, city {text}, " + STAMPS,
    "products": "id {id} PRIMARY KEY, name {text} NOT NULL, price {money} NOT NULL, "
    "stock {big} NOT NULL, " + STAMPS,
    "orders": "id {id} PRIMARY KEY, customer_id {big} NOT NULL, product_id {big} NOT NULL, "
    "quantity {big} NOT NULL, total {money} NOT NULL, status {text} NOT NULL, "
    "ordered_at {moment} NOT NULL, " + STAMPS,
}

FIRST_NAMES = (
    "Ada", "Björn", "Chiara", "Dmitri", "Élise", "Farah", "George",
    "Hanna", "Ines", "Jun", "Karim", "Léa", "Mei", "Noor",
)  # fmt: skip
LAST_NAMES = (
    "Abe", "Baker", "Costa", "Dupont", "Evans", "Fischer", "García",
    "Haddad", "Ito", "Jensen", "Kowalski", "Lund",
)  # fmt: skip
CITIES = (
    "Aarhus", "Beirut", "Córdoba", "Dublin", "Essen", "Fukuoka", "Geneva",
    "Hanoi", "İzmir", "Kraków", "Lima", "Porto",
)  # fmt: skip
GOODS = (
    ("Espresso cup", "7.90"), ("Teapot, cast iron", "48.00"), ("French press", "31.50"),
    ("Kettle", "64.90"), ("Coffee grinder", "119.00"), ("Filter papers, 100", "4.25"),
    ("Milk jug", "18.40"), ("Kitchen scale", "27.95"), ("Moka pot", "36.00"),
    ("Green tea, 250 g", "12.80"), ("Arabica beans, 1 kg", "21.90"), ("Oat biscuits", "3.60"),
)  # fmt: skip
STATUSES = ("placed", "paid", "packed", "shipped", "delivered")
OPEN_ORDERS_KEPT = 200


def create_statements(dialect: str) -> list[str]:
    """Return the CREATE TABLE statements of the shop."""
    return [
        f"CREATE TABLE {name} ({columns.format_map(TYPES[dialect])})"
        for name, columns in TABLES.items()
    ]


@dataclass(frozen=True, slots=True)
class Statement:
    """One SQL statement with `?` parameters that changes exactly one row."""

    sql: str
    parameters: tuple[object, ...]


@dataclass
class Order:
    """An order that is not finished."""

    id: int
    product_id: int
    quantity: int
    status: int = 0


class Shop:
    """Customers, products and orders, and the random choice of the next transaction.

    `moment` gives the wall-clock text of an order's time and `now_ns` the time
    of a change: passed in, so that equal seeds make equal shops.
    """

    def __init__(self, seed: int, now_ns: Callable[[], int], moment: Callable[[], str]) -> None:
        self._random = random.Random(seed)
        self._now_ns = now_ns
        self._moment = moment
        self._changes = 0
        self._customers: list[int] = []
        self._prices: dict[int, Decimal] = {}
        self._stock: dict[int, int] = {}
        self._orders: list[Order] = []
        self._last_order = 0

    @property
    def changes(self) -> int:
        """The number of the last change made."""
        return self._changes

    def transactions(self, most_changes: int | None = None) -> Iterator[list[Statement]]:
        """Yield transactions: the opening of the shop, then its days.

        Ends after exactly `most_changes` changes; never when it is None.
        """
        yield from self._opening(most_changes)
        while most_changes is None or self._changes < most_changes:
            left = 4 if most_changes is None else most_changes - self._changes
            yield self._next(left)

    def _opening(self, most_changes: int | None) -> Iterator[list[Statement]]:
        for step in [*([self._add_product] * len(GOODS)), *([self._add_customer] * 6)]:
            if most_changes is not None and self._changes >= most_changes:
                return
            yield step()

    def _next(self, most_changes: int) -> list[Statement]:
        # (weight, most changes, function): one of those that fit is drawn.
        choices = [
            (8, 1, self._add_customer),
            (6, 1, self._move_customer),
            (8, 1, self._change_price),
            (34, 1, self._advance_order),
            (30, 2, self._place_order),
            (10, 3, self._cancel_order),
        ]
        fitting = [(weight, step) for weight, size, step in choices if size <= most_changes]
        if len(self._orders) > OPEN_ORDERS_KEPT and most_changes >= 3:
            return self._cancel_order()
        weights = [weight for weight, _ in fitting]
        return self._random.choices([step for _, step in fitting], weights)[0]()

    def _stamp(self) -> tuple[int, int]:
        self._changes += 1
        return self._changes, self._now_ns()

    def _add_customer(self) -> list[Statement]:
        first, last = self._random.choice(FIRST_NAMES), self._random.choice(LAST_NAMES)
        number = len(self._customers) + 1
        self._customers.append(number)
        email = f"{first}.{last}.{number}@example.org".lower()
        row = (number, f"{first} {last}", email, self._random.choice(CITIES), *self._stamp())
        return [Statement("INSERT INTO customers VALUES (?, ?, ?, ?, ?, ?)", row)]

    def _move_customer(self) -> list[Statement]:
        city, customer = self._random.choice(CITIES), self._random.choice(self._customers)
        sql = "UPDATE customers SET city = ?, change_no = ?, changed_ns = ? WHERE id = ?"
        return [Statement(sql, (city, *self._stamp(), customer))]

    def _add_product(self) -> list[Statement]:
        number = len(self._prices) + 1
        name, price = GOODS[(number - 1) % len(GOODS)]
        self._prices[number] = Decimal(price)
        self._stock[number] = self._random.randrange(20, 200)
        row = (number, name, price, self._stock[number], *self._stamp())
        return [Statement("INSERT INTO products VALUES (?, ?, ?, ?, ?, ?)", row)]

    def _change_price(self) -> list[Statement]:
        product = self._random.choice(list(self._prices))
        factor = Decimal(self._random.randrange(90, 112)) / 100
        self._prices[product] = max(Decimal("0.50"), self._prices[product] * factor).quantize(
            Decimal("0.01")
        )
        sql = "UPDATE products SET price = ?, change_no = ?, changed_ns = ? WHERE id = ?"
        return [Statement(sql, (str(self._prices[product]), *self._stamp(), product))]

    def _set_stock(self, product: int, difference: int) -> Statement:
        self._stock[product] += difference
        if self._stock[product] < 0:
            self._stock[product] += 500  # a delivery arrives
        sql = "UPDATE products SET stock = ?, change_no = ?, changed_ns = ? WHERE id = ?"
        return Statement(sql, (self._stock[product], *self._stamp(), product))

    def _place_order(self) -> list[Statement]:
        self._last_order += 1
        product, quantity = self._random.choice(list(self._prices)), self._random.randrange(1, 5)
        order = Order(self._last_order, product, quantity)
        self._orders.append(order)
        total = str(self._prices[product] * quantity)
        customer, moment = self._random.choice(self._customers), self._moment()
        row = (order.id, customer, product, quantity, total, STATUSES[0], moment, *self._stamp())
        insert = Statement("INSERT INTO orders VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
        return [insert, self._set_stock(product, -quantity)]

    def _advance_order(self) -> list[Statement]:
        if not self._orders:
            return self._change_price()
        order = self._random.choice(self._orders)
        order.status += 1
        if order.status == len(STATUSES) - 1:
            self._orders.remove(order)
        return [self._update_status(order, STATUSES[order.status])]

    def _cancel_order(self) -> list[Statement]:
        if not self._orders:
            return self._change_price()
        order = self._orders.pop(self._random.randrange(len(self._orders)))
        stamped = self._update_status(order, "cancelled")
        self._changes += 1  # the deletion's own number: see the module's docstring
        deletion = Statement("DELETE FROM orders WHERE id = ?", (order.id,))
        return [stamped, deletion, self._set_stock(order.product_id, order.quantity)]

    def _update_status(self, order: Order, status: str) -> Statement:
        sql = "UPDATE orders SET status = ?, change_no = ?, changed_ns = ? WHERE id = ?"
        return Statement(sql, (status, *self._stamp(), order.id))
