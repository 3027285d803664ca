"""How long a group takes until every partition has an owner again."""

SOURCE = "shop.orders"
CREATE = "CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT)"
GROUP = "rebalance"
TTL_S = 3.0
