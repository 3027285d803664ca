"""Forms of ALTER, and the table that each is done to: for tests, and for benchmarks of all readers.

A form is the parts of ALTERs, one after another, with a `;` between; a part that begins with
INSERT, UPDATE, DELETE or SET is a statement of its own, on the table `{name}`.
"""

from __future__ import annotations

from collections.abc import Iterator

# What each table gets after its rows were written, and what it is that it shows.
TELLABLE = [
    "RENAME COLUMN city TO town",
    "ADD vip INT NOT NULL DEFAULT 7",
    "ADD vip INT NOT NULL",
    "ADD x INT DEFAULT 7",
    "ADD x INT",
    "ADD x VARCHAR(20) NOT NULL",
    "ADD x VARCHAR(20) NOT NULL DEFAULT 'it''s'",
    "ADD x ENUM('b','a') NOT NULL",
    "ADD x ENUM('b','a') DEFAULT 'a'",
    "ADD x SET('b','a') NOT NULL DEFAULT 'a,b'",
    "ADD x DECIMAL(10,3) NOT NULL DEFAULT -1.5",
    "ADD x DOUBLE NOT NULL DEFAULT 0.1, ADD y FLOAT NOT NULL DEFAULT 0.1",
    "ADD x DATE DEFAULT '2020-02-29', ADD y DATETIME(3) DEFAULT '2020-02-29 01:02:03.5'",
    "ADD x TIME DEFAULT '-12:30:00', ADD y YEAR DEFAULT 2020",
    "ADD x BIGINT UNSIGNED NOT NULL DEFAULT 18446744073709551615",
    "ADD x BOOL NOT NULL DEFAULT TRUE FIRST",
    "ADD x BIT(9) NOT NULL, ADD y TEXT NOT NULL, ADD z VARBINARY(9) NOT NULL",
    "ADD x TIME NOT NULL, ADD y YEAR NOT NULL, ADD z BLOB",
    "DROP COLUMN city",
    "MODIFY n BIGINT",
    "MODIFY n DECIMAL(12,2)",
    "MODIFY f DOUBLE",
    "MODIFY d DECIMAL(12,4)",
    "MODIFY city VARCHAR(200) AFTER d",
    "MODIFY city TEXT",
    "MODIFY e ENUM('x','y','z')",
    "MODIFY t DATETIME(6)",
    "CHANGE city town VARCHAR(60) NOT NULL",
    "RENAME COLUMN city TO town, ADD city VARCHAR(5) DEFAULT 'new'",
    "RENAME COLUMN n TO m, RENAME COLUMN m TO n",
    "RENAME COLUMN city TO town; ADD city INT DEFAULT 1; RENAME COLUMN town TO old",
    "DROP COLUMN city; ADD city VARCHAR(20) DEFAULT 'x'",
    "ADD x INT DEFAULT 1; MODIFY x BIGINT; RENAME COLUMN x TO y; DROP COLUMN n",
    "ADD INDEX (city)",
    "ALTER COLUMN n SET DEFAULT 3",
    "ADD x INT DEFAULT (7)",
    "ADD x TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP",
    "ADD x VARCHAR(9) DEFAULT -7, ADD y YEAR DEFAULT 0, ADD z DATE DEFAULT '1999-12-31'",
    "ADD x DATE, ADD y INT DEFAULT 2, MODIFY x BIGINT DEFAULT 7",
    "DROP COLUMN city, ADD city DATE, MODIFY city VARCHAR(9) DEFAULT 'new' FIRST",
]
TO_BE_READ = [
    "MODIFY n TINYINT",
    "MODIFY d DECIMAL(10,1)",
    "MODIFY n VARCHAR(20)",
    "MODIFY t DATE",
    "MODIFY city CHAR(20)",
    "ADD x DATETIME DEFAULT CURRENT_TIMESTAMP, RENAME COLUMN city TO town",
    "ADD x VARCHAR(40) DEFAULT (CONCAT(city, n))",
    "ADD x VARCHAR(40) DEFAULT (UUID())",
    "ADD g INT AS (n * 2) STORED",
    "ADD x INT DEFAULT 7.6",
    "ADD x VARCHAR(20) DEFAULT -0",
    "ADD x DECIMAL(5,2) DEFAULT -0, ADD y DOUBLE DEFAULT -0",
    "ADD x YEAR DEFAULT '0'",
    "ADD x ENUM('0','1','2') DEFAULT 1",
    "CONVERT TO CHARACTER SET latin1",
    "MODIFY e ENUM('y','x')",
    "DROP PRIMARY KEY, ADD PRIMARY KEY (n)",
    "DROP PRIMARY KEY",
    "ADD x BINARY(3) NOT NULL DEFAULT 'a'",
    "MODIFY f INT",
    "DROP PRIMARY KEY, DROP COLUMN id, ADD id INT NOT NULL AUTO_INCREMENT PRIMARY KEY",
]
NOT_ON_MYSQL = {
    "ADD x VARCHAR(40) DEFAULT (UUID())",  # refused: not the same on a replica
    "ADD x ENUM('0','1','2') DEFAULT 1",  # refused: not a member
    # Refused: there is no such column yet.
    "ADD x DATE, ADD y INT DEFAULT 2, MODIFY x BIGINT DEFAULT 7",
    "DROP COLUMN city, ADD city DATE, MODIFY city VARCHAR(9) DEFAULT 'new' FIRST",
}
TABLE = (
    "(id INT PRIMARY KEY, city VARCHAR(20), n INT NOT NULL, m INT, f FLOAT, d DECIMAL(10,2),"
    " e ENUM('x','y'), t DATETIME)"
)
ROWS = (
    "(1, 'Ulm', 1, 10, 0.1, 1.25, 'x', '2020-01-02 03:04:05'),"
    " (2, 'Bonn  ', 2, 20, 1000.5, -99.99, 'y', '1999-12-31 23:59:59'),"
    " (3, 'né', 3, NULL, NULL, NULL, NULL, NULL)"
)

# Several ALTERs with rows between, which a consumer may get in one batch.
CHAINS = [
    "RENAME COLUMN city TO town; UPDATE {name} SET town = 'x' WHERE id = 1; RENAME COLUMN town TO"
    " place; UPDATE {name} SET place = 'y' WHERE id = 2",
    "RENAME COLUMN city TO town; UPDATE {name} SET town = 'x' WHERE id = 1; RENAME COLUMN town TO"
    " city; UPDATE {name} SET city = 'y' WHERE id = 2",
    "RENAME COLUMN n TO p, RENAME COLUMN m TO n; UPDATE {name} SET n = 5 WHERE id = 1; RENAME"
    " COLUMN n TO m, RENAME COLUMN p TO n; UPDATE {name} SET m = 6 WHERE id = 2",
    "ADD x INT DEFAULT 1; DROP COLUMN x; ADD x INT DEFAULT 2",
    "DROP COLUMN m; UPDATE {name} SET n = 9 WHERE id = 1; ADD m INT DEFAULT 5; UPDATE {name} SET"
    " n = 8 WHERE id = 2",
    "MODIFY n BIGINT; UPDATE {name} SET n = 5000000000 WHERE id = 1; RENAME COLUMN n TO big;"
    " UPDATE {name} SET big = 6000000000 WHERE id = 2",
    "MODIFY d DECIMAL(12,4); UPDATE {name} SET d = 0.1234 WHERE id = 1; RENAME COLUMN d TO n2,"
    " MODIFY f DOUBLE; UPDATE {name} SET f = 0.1 WHERE id = 2; MODIFY n2 DECIMAL(20,6)",
]
# Rows are made to fit first. What the log has of them from before fits the newest version no more.
MADE_TO_FIT = [
    "UPDATE {name} SET m = 0 WHERE m IS NULL; MODIFY m INT NOT NULL",
    "INSERT INTO {name} (id, n) VALUES (4, 4), (5, 5); UPDATE {name} SET m = 0 WHERE m IS NULL;"
    " CHANGE m p BIGINT NOT NULL; UPDATE {name} SET p = 6 WHERE id = 1",
    "INSERT INTO {name} (id, n) VALUES (4, 4); DELETE FROM {name} WHERE m IS NULL; MODIFY m INT"
    " NOT NULL",
    "UPDATE {name} SET e = 'y', d = 0, city = NULL WHERE id > 1; UPDATE {name} SET e = 'x', d = 1,"
    " city = '' WHERE d IS NULL OR city IS NULL; MODIFY e ENUM('x','y','z') NOT NULL, MODIFY d"
    " DECIMAL(12,4) NOT NULL, MODIFY city VARCHAR(30) NOT NULL",
]
MADE_TO_FIT_TO_BE_READ = [
    "UPDATE {name} SET n = 70000 WHERE id = 1; UPDATE {name} SET n = 7 WHERE id = 1; MODIFY n"
    " SMALLINT NOT NULL",
    "UPDATE {name} SET e = 'x' WHERE e = 'y'; MODIFY e ENUM('x')",
    "UPDATE {name} SET city = 'B' WHERE id = 2; MODIFY city VARCHAR(4)",
    "UPDATE {name} SET city = 'é' WHERE id = 2; CONVERT TO CHARACTER SET latin1",
    "SET sql_mode = ''; UPDATE {name} SET n = 9 WHERE id = 1; MODIFY m INT NOT NULL, MODIFY e"
    " ENUM('x','y') NOT NULL; SET sql_mode = DEFAULT",
]
# A name goes to a column of another type: a stream, which has one type for it, reads rows again.
RETYPED_CHAINS = [
    "ADD x INT DEFAULT 1; UPDATE {name} SET x = 2 WHERE id = 1; DROP COLUMN x; UPDATE {name} SET"
    " n = 9 WHERE id = 2; ADD x VARCHAR(9) DEFAULT 'z'; UPDATE {name} SET x = 'w' WHERE id = 3",
    "RENAME COLUMN city TO town; INSERT INTO {name} (id, town, n) VALUES (4, 'new', 4); ADD city"
    " INT DEFAULT 1; DELETE FROM {name} WHERE id = 2; RENAME COLUMN city TO m2, RENAME COLUMN town"
    " TO city; INSERT INTO {name} (id, n) VALUES (2, 22)",
]
# Their keys hold other values than before, which stores tell apart anew.
KEY_CHAINS = [
    "RENAME COLUMN id TO nr; UPDATE {name} SET n = 9 WHERE nr = 1; MODIFY nr BIGINT; INSERT INTO"
    " {name} (nr, n) VALUES (5000000000, 4)",
    "CHANGE id nr BIGINT",
]


def statements(form: str, name: str) -> Iterator[str]:
    """Yield the statements of a form, for a table."""
    for part in form.split("; "):
        is_own = part.startswith(("INSERT", "UPDATE", "DELETE", "SET"))
        yield part.format(name=name) if is_own else f"ALTER TABLE {name} {part}"
