"""Foreign keys that change rows unlogged, as SHOW CREATE TABLE has them."""

from __future__ import annotations

import pytest

from databus.relay.sources.mysql.server.foreign_keys import cascades_of

BODY = """CREATE TABLE `c` (
  `id` int(11) NOT NULL COMMENT 'FOREIGN KEY ON DELETE CASCADE, CONSTRAINT `x` ON UPDATE CASCADE',
  `p` int(11) DEFAULT NULL,
  `ON DELETE CASCADE` enum('a,b','(') DEFAULT 'a,b',
  PRIMARY KEY (`id`),
  KEY `FOREIGN` (`p`),
  CONSTRAINT `a,b` FOREIGN KEY (`p`) REFERENCES `t` (`id`){rules}
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COMMENT='ON DELETE CASCADE'"""


@pytest.mark.parametrize(
    ("rules", "found"),
    [
        ("", []),
        (" ON DELETE RESTRICT ON UPDATE NO ACTION", []),
        (" ON DELETE NO ACTION", []),
        (" ON DELETE CASCADE", ["DELETE CASCADE"]),
        (" ON DELETE CASCADE ON UPDATE NO ACTION", ["DELETE CASCADE"]),
        (" ON DELETE SET NULL ON UPDATE CASCADE", ["DELETE SET NULL", "UPDATE CASCADE"]),
        (" ON UPDATE SET DEFAULT", ["UPDATE SET DEFAULT"]),
        (
            ",\n  CONSTRAINT `q` FOREIGN KEY (`p`) REFERENCES `u` (`id`) ON UPDATE CASCADE",
            ["UPDATE CASCADE"],
        ),
    ],
)
def test_the_rules_of_foreign_keys_are_read_and_no_comment_or_name(
    rules: str, found: list[str]
) -> None:
    cascades = list(cascades_of("shop.c", BODY.replace("{rules}", rules)))
    assert [one.rule for one in cascades] == found
    assert [one.constraint for one in cascades] == ["q" if "`q`" in rules else "a,b"] * len(found)
