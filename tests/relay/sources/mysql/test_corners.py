"""Corners of MySQL and MariaDB: what is known of each table is what the server says of it.

Statements that other readers of binlogs get wrong, in every form that there is
of them, are run on each server; after each one the definitions followed from
the log are compared with the server's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from pymysql.err import MySQLError
from pymysqlreplication.constants import BINLOG

from databus.demo.private_mariadb import PrivateMariaDB
from databus.relay.sources.mysql.binlog.events import EventReader, parse_query
from databus.relay.sources.mysql.tables import sql_mode
from databus.relay.sources.source import TableDefined, TableEmptied
from databus.schemas.errors import SourceStoppedError
from tests.mariadb_server import Database, fresh_database
from tests.relay.sources.mysql.reading import opened, read_changes, watching
from tests.relay.sources.mysql.tables.ddl_following import Follower, following

pytest_plugins = ["tests.mariadb", "tests.mysql"]

SERVERS = [
    pytest.param("mariadb", marks=pytest.mark.mariadb),
    pytest.param("newer_mariadb", marks=pytest.mark.newer_mariadb),
    pytest.param("mysql_server", marks=pytest.mark.mysql),
]
on_mariadb = pytest.mark.parametrize("running", SERVERS[:2], indirect=True)
on_mysql = pytest.mark.parametrize("running", SERVERS[2:], indirect=True)


@pytest.fixture(scope="module", params=SERVERS)
def running(request: pytest.FixtureRequest) -> PrivateMariaDB:
    """A running server of each kind."""
    server: PrivateMariaDB = request.getfixturevalue(request.param)
    return server


@pytest.fixture
def database(running: PrivateMariaDB) -> Iterator[Database]:
    """A fresh database."""
    with fresh_database(running) as made:
        yield made


@pytest.fixture
def follower(database: Database, tmp_path: Path) -> Iterator[Follower]:
    """Follows the fresh database; table t is watched."""
    with following(database, tmp_path) as made:
        yield made


def follow(follower: Follower, statements: Sequence[str], *, each: bool = True) -> list[str]:
    """Run statements and compare after `each`, or the last; return those that were refused."""
    refused = []
    for text in statements:
        try:
            follower.run(text.replace("{db}", follower.database.name))
        except MySQLError:
            refused.append(text)
            continue
        if each or text == statements[-1]:
            assert follower.known() == follower.now(), text
    return refused


WORDS = [
    "2015_foo", "1_2", "0xg", "0x1g", "0X1F", "0x", "0b2", "0b01x", "0B1", "1ea", "1e_5", "9$",
    "$9", "a1e5", "_1e5", "4ключ", "日本", "1→",
]  # fmt: skip
NUMBERS = ["1e5", "5e10", "1e5x", "0b1", "0x1f", "12", "1.5", "x'61'"]


def forms(name: str, other: str) -> list[str]:
    """Return statements of every form about a table of a name, and about a column of it."""
    return [
        f"create table {name} (a int)",
        f"alter table {name} add {name} int, add index ({name})",
        f"truncate table {name}",
        f"truncate {name}",
        f"create table q like {name}",
        f"rename table {name} to {other}, {other} to zz, zz to {name}",
        f"alter table {name} rename column {name} to y",
        f"alter table {name} change y {name} bigint after a",
        f"alter table {name} modify {name} int first, add b int after {name}",
        f"alter table {name} drop {name}",
        f"alter table {name} rename to {other}",
        f"alter table {other} rename {name}",
        f"create index i on {name} (a)",
        f"drop index i on {name}",
    ]


def of_database(name: str) -> list[str]:
    """Return statements about a table named with its database, without quotes."""
    return [
        f"create table {{db}}.{name} (a int)",
        f"alter table {{db}}.{name} add b int",
        f"truncate {{db}}.{name}",
    ]


def test_names_may_begin_with_digits_in_every_form_of_statement(follower: Follower) -> None:
    for word in WORDS:
        assert follow(follower, forms(word, "1other"), each=False) == [], word
        assert follow(follower, [f"drop table q, {word}"]) == []
    for number in NUMBERS:
        assert follow(follower, [f"create table {number} (a int)"]), number
        assert follow(follower, forms(f"`{number}`", "1other")[:6], each=False) == [], number
        follower.run(f"drop table q, `{number}`")
    for number in ["2015_foo", "1e5", "5e10", "1e5x", "0b1", "0x1f"]:  # names, behind a dot
        assert follow(follower, of_database(number), each=False) == [], number


@pytest.mark.parametrize("name", ["2015_foo", "1_2", "0xg", "0x1g"])
def test_what_is_done_to_a_table_whose_name_begins_with_digits_is_told(
    database: Database, tmp_path: Path, name: str
) -> None:
    with following(database, tmp_path, name) as follower:
        follower.run(
            f"create table {name} (id int primary key, {name}x int)",
            f"insert into `{name}` values (1, 2)",
            f"truncate table {name}",
            f"alter table {name} add c int",
            f"insert into `{name}` values (3, 4, 5)",
        )
        kinds = [type(c) for c in follower.changes if isinstance(c, (TableDefined, TableEmptied))]
        rows = [change.row for change in follower.rows]
        assert kinds == [TableDefined, TableEmptied, TableDefined, TableDefined]
        assert rows == [{"id": 1, f"{name}x": 2}, {"id": 3, f"{name}x": 4, "c": 5}]
        follower.run("create table x like " + name, f"drop table {name}")
        follower.changes.clear()
        follower.run(f"rename table x to {name}")
        assert [type(change) for change in follower.changes] == [TableDefined]


QUOTED = {
    "any letters": [
        "create table `a b` (id int primary key, `select` int)",
        "create table `a.b` (id int, `x.y` int)",
        "create table `a``b` (`c``d` int)",
        "create table `日本` (`ключ 1` int)",
        "create table `日本2` (a日1 int)",
        "rename table `日本` to `t`, `a b` to `日本`",
        "create table ключ1 (ключ2 int, → int)",
        "alter table ключ1 add 1ж int",
        "create table `key` (`primary` int, `index` int)",
        "create table period (period int, `system` int, versioning int)",
        "alter table period add row_start int, add invisible int, add `check` int",
        "create table {db}.order (a int)",
        "alter table {db}.`order` add b int",
        "drop table {db}.order",
    ],
    "ANSI_QUOTES": [
        "set sql_mode = 'ANSI_QUOTES'",
        'create table "a b" (id int primary key, "select" int, "日本" int)',
        'create table "a.b" (id int, "x.y" int)',
        'create table "1" ("2" int, "1e5" int, c enum(\'"\', \'a\'))',
        'create table "Ünï" (a int)',
        'rename table "a b" to "t", "1" to "2"',
        'alter table "t" rename column "select" to "a""b"',
        'truncate table "2"',
        'create table "c`d" ("e`f" int)',
        'drop table "a.b", "Ünï"',
    ],
    "backslashes": [
        "set sql_mode = ''",
        r"""create table t (id int primary key, a enum('x\'y','\\','\n','\t','\Z','\%','\_','a\b',
        'it''s','\"','''','\q'), b enum("x""y","a\'b",'c""d'))""",
        r"alter table t add c int comment '\\', add d int comment '\''",
    ],
    "NO_BACKSLASH_ESCAPES": [
        "set sql_mode = 'NO_BACKSLASH_ESCAPES'",
        r"create table t (id int primary key, a enum('x\') comment 'q\', b enum('a\n','\'))",
        r"alter table t add c int comment 'x\'",
        r"alter table t comment='abc\\', add d int",
        r'alter table t add e int comment "x\" ',
        "/* it's */ alter table t add f int # it's\n",
        "alter table t add g int -- it's",
        "alter table t add h int comment '-- x', add i int comment '/* x', add j int comment '*/'",
    ],
    "NO_BACKSLASH_ESCAPES and ANSI_QUOTES": [
        "set sql_mode = 'NO_BACKSLASH_ESCAPES,ANSI_QUOTES'",
        r"""create table "t" ("i\" int primary key, "a""b" enum('x\') comment 'q\')""",
        r'alter table "t" add "c\d" int',
        r'alter table "t" rename to "\"',
    ],
}


@pytest.mark.parametrize("case", QUOTED)
def test_quotes_are_read_as_the_session_that_wrote_them_does(follower: Follower, case: str) -> None:
    assert follow(follower, QUOTED[case]) == []


TYPES = [
    "decimal(19.5)", "float(7.4)", "float(7.0)", "float(24.9)", "float(25.9)", "float(30.4)",
    "int(3.7)", "varchar(10.9)", "char(3.2)", "bit(5.5)", "datetime(3.2)", "year(4.4)",
    "binary(3.9)", "text(300.5)", "decimal(.5)", "varchar(.9)", "float(7,4)", "double(5,0)",
    "real(5,2)", "decimal(0)", "blob(0)", "text(0)", "bit(3) default b'101'", "int default 1e5",
    "double default .5", "double default -1.5e-3", "enum(x'61')", "enum(0x61,0x62)",
    "set(b'01100001')", "long character set latin1", "long char set latin1", "long varchar",
]  # fmt: skip
OF_MODES = [
    "real", "timestamp", "timestamp(3) null", "date", "date not null", "blob", "blob(30)",
    "number", "number(5)", "number(5,2)", "clob", "raw(10)", "raw(70000)", "varchar2(10)",
    "varchar2(70000)", "varchar(70000)", "varbinary(70000)",
]  # fmt: skip
WITH_OWNERS = [
    "mariadb_schema.date", "oracle_schema.date", "mariadb_schema.timestamp",
    "maxdb_schema.timestamp", "oracle_schema.timestamp", "mariadb_schema.blob",
    "oracle_schema.blob", "oracle_schema.clob", "oracle_schema.number(5)", "oracle_schema.raw(5)",
    "mariadb_schema.varchar(5)",
]  # fmt: skip
MODES = [
    "", "REAL_AS_FLOAT", "ANSI", "PIPES_AS_CONCAT,IGNORE_SPACE", "NO_ZERO_IN_DATE",
    "STRICT_TRANS_TABLES", "STRICT_ALL_TABLES",
]  # fmt: skip
MARIADB_MODES = ["ORACLE", "MAXDB", "MSSQL", "DB2"]


def test_types_are_what_the_server_makes_of_them_in_every_mode(follower: Follower) -> None:
    taken = set()
    for mode in [*MODES, *(MARIADB_MODES if follower.is_mariadb else ())]:
        types = [*OF_MODES, *(WITH_OWNERS if mode in ("", "ORACLE") else ())]
        if not mode:
            types += TYPES
        follower.run(f"set sql_mode = '{mode}'")
        table = f"of_{mode.replace(',', '')}"
        for of in types:
            text = f"create table `{table} {of}` (a {of})"
            with suppress(MySQLError):
                follower.run(text)
                taken.add(of)
        assert follower.known() == follower.now()
    assert len(taken) > (50 if follower.is_mariadb else 30)


BITS = {name: bit for name, bit in vars(sql_mode).items() if name.isupper()}


def modes_in_the_log(follower: Follower, until: str) -> dict[str, int]:
    """Return the `sql_mode` that the log says of each statement up to one."""
    reader, found = EventReader(), dict[str, int]()
    while until not in found:
        for data in follower._dump.receive(5.0) or ():
            event = reader.read(data)
            if event.type_code == BINLOG.QUERY_EVENT:
                query = parse_query(event, {})
                found[query.text] = query.sql_mode
    return found


def test_bits_of_sql_mode_in_the_log_are_those_that_the_server_names(follower: Follower) -> None:
    of_mariadb = {"ORACLE", "MAXDB", "EMPTY_STRING_IS_NULL"}
    names = set(BITS) if follower.is_mariadb else set(BITS) - of_mariadb
    said, run = {}, follower.database.run
    for name in ["", *sorted(names)]:
        run(f"SET sql_mode = '{name}'", f"CREATE TABLE of_{name} (a int)")
        said[f"CREATE TABLE of_{name} (a int)"] = set(run("SELECT @@sql_mode")[0][0].split(","))
    seen = modes_in_the_log(follower, until=list(said)[-1])
    for text, modes in said.items():
        assert {name for name, bit in BITS.items() if seen[text] & bit} == modes & set(BITS), text
    assert set().union(*said.values()) >= names


QUERIES = [
    "create table {n} (a int) select 1 as b",
    "create table {n} as select 1 as b",
    "create table {n} (a int primary key) replace select 1 as a",
    "create table {n} (a int primary key) ignore as select 1 as a, 2 as c",
    "create table {n} (select 1 as b)",
    "create table {n} (a int) (select 1 as b)",
    "create table {n} as (select 1 as b)",
    "create table {n} ((select 1 as b))",
    "create table {n} with c as (select 1 as b) select * from c",
    "create table {n} (a int) with c as (select 1 as b) select * from c",
    "create table {n} table t",
    "create table {n} (z int) as table t",
    "create table {n} values row(1, 2)",
    "create table {n} values (1, 2)",
    "create table {n} (a int) partition by range (a) (partition p values less than (10))"
    " as select 1 as a",
    "create table {n} (a int) /* c */ as /* d */ select /* e */ 1 as b",
    "create table {n} (a int) charset latin1 as (select 1 as b) union (select 2)",
    "create or replace table {n} select 2 as q",
    "create table {n} (with c as (select 1 as b) select * from c)",
    "create table {n} (table t)",
    "create table {n} (a int) with system versioning select 1 as b",
    "create table {n} with system versioning select 1 as b",
]
PARTITIONED = [
    "create table t (id int primary key) partition by range(id) (partition p values less than (9))",
    "insert into t values (1)",
    "create table p1 (id int primary key) engine=innodb partition by list(id)"
    " (partition p0 values in (1,2), partition p1 values in (3))",
    "create table p2 (id int primary key) charset latin1 /*!50100 partition by range columns(id)"
    " (partition p0 values less than (10), partition p1 values less than maxvalue) */",
    "create table p3 (id int, b date, primary key (id,b)) comment='select' partition by"
    " range(to_days(b)) subpartition by hash(id) (partition p0 values less than (10)"
    " (subpartition s0, subpartition s1))",
    "create table p4 (id int) partition by key(id) partitions 3",
    "create table p5 (id int) partition by linear hash (id) partitions 3",
    "create table p6 (a int, b char(9)) partition by list columns(a,b)"
    " (partition p values in ((1,'select'),(2,'x')))",
    "alter table t add column c int",
    "alter table t remove partitioning",
    "alter table t partition by key(id) partitions 4",
]


def test_a_table_with_partitions_is_not_made_from_a_select(follower: Follower) -> None:
    assert follow(follower, PARTITIONED) == []
    assert [change.row for change in follower.rows] == [{"id": 1}]


@pytest.mark.parametrize("form", ["ROW", "STATEMENT"])
def test_a_table_that_is_made_from_a_select_is_known_or_said_not_to_be(
    follower: Follower, form: str
) -> None:
    follower.run(f"set session binlog_format = {form}", "create table t (a int, b varchar(5))")
    made = 0
    for number, text in enumerate(QUERIES):
        try:
            follower.run(text.format(n=f"n{number}"))
        except MySQLError:
            continue
        made += 1
        known, now = follower.known(), follower.now()
        assert known[f"n{number}"] in (now[f"n{number}"], "it was made from a SELECT"), text
        assert form == "STATEMENT" or known == now, text
    assert made >= 15


KEYLESS = [
    "set sql_generate_invisible_primary_key = ON",
    "create table t (a int)",
    "alter table t add c bigint unsigned not null first",
    "insert into t (a, c) values (1, 77)",
    "set sql_generate_invisible_primary_key = OFF",
    "alter table t modify a bigint first, add d int after my_row_id, add e int first",
    "create table u like t",
    "alter table u add first_ int first",
    "alter table u alter column my_row_id set visible",
    "alter table u add z int first",
    "alter table u alter column my_row_id set invisible",
    "alter table u add y int first",
    "alter table t add h int first",
    "create table v (a int, my_row_id bigint unsigned not null auto_increment invisible"
    " primary key)",
    "alter table v add y int first",
    "alter table v modify my_row_id bigint unsigned not null auto_increment invisible first",
    "alter table v add z int first",
    "create table w (my_row_id int primary key, b int)",
    "alter table w add x int first",
    "set sql_generate_invisible_primary_key = ON",
    "create table z (a int)",
    "alter table z add b int first",
    "alter table z drop my_row_id, drop primary key, add primary key (a)",
    "alter table z add c int first",
]


@on_mysql
def test_the_key_that_the_server_generates_stays_in_front(follower: Follower) -> None:
    assert follow(follower, KEYLESS) == []
    assert [change.row for change in follower.rows] == [{"my_row_id": 1, "c": 77, "a": 1}]


INVISIBLE = [
    "create table t (a int primary key, b int invisible default 3, c int default 4)",
    "insert into t values (1, 2)",
    "alter table t modify b int invisible first",
    "alter table t add d int invisible first",
    "alter table t add e int default 5 invisible",
]


def test_invisible_columns_are_logged_where_they_stand(follower: Follower) -> None:
    assert follow(follower, INVISIBLE) == []
    assert [change.row for change in follower.rows] == [{"a": 1, "b": 3, "c": 2}]


MEMBERS = [
    "create table t (id int primary key) charset latin1",
    "alter table t add e enum('a','日本')",
    "insert into t values (1, 2)",
    "alter table t add f set('a','é','日x','z')",
    "alter table t add g enum('a','日') character set utf8mb4",
    "alter table t add h enum('a','ж','ü') character set koi8r",
    "alter table t add k enum('a','ж','ü','€') character set cp1251",
    "alter table t add l enum('€','ÿ','\u0081')",
    "create table t2 (e enum('a','日本','𝄞')) charset utf8mb3",
    "create table t3 (e enum('a','𝄞')) charset ucs2",
    "create table t4 (e enum('a','日','é')) charset ascii",
    "create table t5 (e enum('日本','é','é ') character set binary)",
]


@pytest.mark.parametrize("client", ["utf8mb4", "latin1"])
def test_members_of_an_enum_are_what_its_character_set_has_of_them(
    follower: Follower, client: str
) -> None:
    follower.run("set sql_mode = ''")
    if client == "latin1":
        follower.run("set names latin1")
        follower.database.connection.encoding = "cp1252"
        texts = [
            t for t in MEMBERS if not any(letter > "\u00ff" or letter == "\x81" for letter in t)
        ]
        assert follow(follower, texts) == ["insert into t values (1, 2)"]
        return
    assert follow(follower, MEMBERS) == []
    assert [change.row for change in follower.rows] == [{"id": 1, "e": "??"}]


TO_CONVERT = "e enum('a','é','ж'), f set('ü','a'), g enum('a','b'), h varchar(20), i text"


@pytest.mark.parametrize("charset", ["latin1", "koi8r", "utf8mb3", "binary"])
def test_members_that_a_conversion_garbles_are_garbled_as_the_server_does(
    follower: Follower, charset: str
) -> None:
    statements = [
        "set sql_mode = ''",
        f"create table t (id int primary key, {TO_CONVERT}) charset utf8mb4",
        f"alter table t convert to character set {charset}",
        "insert into t (id, e, f) values (1, 2, 1)",
        "alter table t convert to character set utf8mb4",
        f"alter table t modify e enum('é','ж'), convert to character set {charset}",
        "alter table t modify e enum('é','ж') character set koi8r, convert to charset latin1",
    ]
    assert follow(follower, statements) == []


def test_members_that_nobody_knows_after_a_conversion_are_not_guessed(follower: Follower) -> None:
    follower.run(
        "set sql_mode = ''",
        "create table t (id int primary key, e enum('a','é')) charset latin1",
        "alter table t convert to character set utf8mb4",
    )
    assert "which members column 'e' has in utf8mb4 is not known" in str(follower.known()["t"])


PERIOD = (
    "s timestamp(6) generated always as row start, e timestamp(6) generated always as row end,"
    " period for system_time (s, e)"
)
VERSIONED = [
    "set system_versioning_alter_history = keep",
    f"create table t (id int primary key, v int, {PERIOD}) with system versioning",
    f"create table u (id int, v int, {PERIOD}) with system versioning",
    f"create table w (id int, v int, unique key (id), {PERIOD}) with system versioning",
    f"create table y (id int, {PERIOD}, primary key (e, id)) with system versioning",
    "create table x (id int primary key, v int) with system versioning",
    "create table x2 like x",
    "create table t2 like t",
    "alter table t add c int",
    "alter table t2 drop system versioning, drop s, drop e",
    "alter table x drop primary key, add primary key (v)",
    "alter table x drop primary key",
    "alter table w add primary key (id)",
    "alter table x rename column v to ww",
    "create table v1 (a int, b int with system versioning)",
    "create table v2 (a int primary key, b int without system versioning) with system versioning",
    "create table v3 (a int primary key, b int with system versioning comment 'x' not null, c int)",
    "alter table v3 modify c int with system versioning",
    "create table v4 (a int primary key, b int without system versioning)",
    "alter table v2 drop system versioning",
    "create table o1 (id int, s date, e date, period for p (s,e), unique (id, p without overlaps))",
    "create table o2 (id int, s date, e date, period for p (s,e),"
    " primary key (id, p without overlaps))",
    "alter table o2 add x int first",
    "alter table o2 drop primary key, drop period for p",
    "alter table o2 add period for pp (s,e), add primary key (id, pp without overlaps)",
]


@on_mariadb
def test_periods_and_versioning_are_followed(follower: Follower) -> None:
    assert follow(follower, VERSIONED) == []


@on_mariadb
@pytest.mark.parametrize("metadata", ["NO_LOG", "FULL"])
def test_the_key_of_a_versioned_table_is_the_same_whenever_it_was_first_seen(
    database: Database, tmp_path: Path, metadata: str
) -> None:
    keys = []
    database.run(f"set global binlog_row_metadata = {metadata}")
    try:
        with following(database, tmp_path) as early:
            early.run(
                f"create table t (id int primary key, v int, {PERIOD}) with system versioning"
            )
            with following(database, tmp_path) as late:
                database.run("insert into t (id, v) values (1, 2)", "update t set v = 3")
                for follower in (early, late):
                    follower.catch_up()
                    keys += [[c.name for c in r.table.key_columns] for r in follower.rows]
    finally:
        database.run("set global binlog_row_metadata = NO_LOG")
    assert keys == [["id"]] * 4


@on_mariadb
def test_a_column_with_versioning_makes_its_table_a_versioned_one(follower: Follower) -> None:
    follower.run(
        "create table t (a int primary key, b int with system versioning, c int)",
        "insert into t values (1, 2, 3)",
        "update t set b = 5",
        "delete from t",
    )
    told = [(change.op.value, change.row["b"]) for change in follower.rows]
    assert told == [("insert", 2), ("update", 5), ("delete", 5)]


PARTS = [
    "json_set(d,'$.a[last]',9)",
    "json_set(d,'$.a[last-1]',9)",
    "json_set(d,'$.a[last-7]',9)",
    "json_replace(d,'$.a[last]','x')",
    "json_remove(d,'$.a[last]')",
    "json_remove(d,'$.a[last-1]')",
    "json_set(d,'$.a[10]',5)",
    "json_set(d,'$.b',cast('[1,[2,3,[4]]]' as json))",
    "json_set(d,'$.b[1][2][0]',7)",
    "json_set(d,'$.b[last][last][last]',8)",
    "json_set(d,'$.c[0]',1)",
    "json_set(d,'$.s[1]',2)",
    "json_set(d,'$.o[0]',3)",
    "json_set(d,'$.o[last]',4)",
    "json_set(d,'$.s[0]',5)",
    "json_set(d,'$.s[last]',6)",
    "json_set(d,'$.n[last-1]',6)",
    "json_remove(d,'$.a[0]')",
    "json_set(d,'$.\"q u.o\"',1)",
    "json_set(d,'$.\"q u.o\"',2)",
    'json_set(d,\'$."a\\\\"b"\',2)',
    "json_set(d,'$.\"日本\"','x')",
    "json_set(d,'$.a[0]',1,'$.a[1]',2,'$.a[last]',3)",
    "json_set(d,'$[0].a[0]',77)",
    "json_set(d,'$[last].a[0]',78)",
    "json_set(d,'$',cast('[1,2,3,4]' as json))",
    "json_set(d,'$[last]',40)",
    "json_set(d,'$[last-1]',30)",
    "json_remove(d,'$[last]')",
    "json_set(d,'$[last-9]',30)",
    "json_set(d, '$[ last - 1 ]', 44)",
    "json_set(d,'$','scalar')",
    "json_set(d,'$[last]','sc3')",
    "json_set(d,'$[0][1]','sc6')",
    "json_set(d,'$[last][0][last]','sc8')",
    "json_remove(d,'$[0][last]')",
    "json_set(d,'$', cast('{\"k\":{\"l\":1}}' as json))",
    "json_set(d,'$[last].k[last].l[last]',4)",
    "json_remove(d,'$.k[last].l')",
    "json_set(d,'$.k.$x',1)",
    "json_set(d, '$.k . $x', 3)",
]


@on_mysql
def test_every_path_to_a_part_of_a_json_value_is_found(follower: Follower) -> None:
    text = '{"a": [1, 2, 3], "s": 5, "o": {"x": 1}, "n": null, "pad": "%s"}' % ("0123456789" * 6)
    follower.run(
        "set binlog_row_value_options = PARTIAL_JSON",
        "create table t (id int primary key, d json)",
        f"insert into t values (1, '{text}')",
    )
    for part in PARTS:
        follower.run(f"update t set d = {part}")
        ((stored,),) = follower.database.run("select d from t")
        assert follower.rows[-1].row["d"] == stored, part
    assert len(follower.rows) > 35


def test_a_statement_that_is_not_understood_and_let_pass_ends_its_transaction(
    follower: Follower,
) -> None:
    follower.run(
        "set sql_mode = ''",
        "create table t (id int primary key, e enum('a','é')) charset latin1",
        "alter table t convert to character set utf8mb4",
        "alter table t drop e",
        "create table other (a int)",
        "drop table t",
        "create table t (id int)",
        "insert into t values (4)",
    )
    assert [change.row for change in follower.rows] == [{"id": 4}]


# Not understood: members given by bytes that are no ASCII.
BY_BYTES = (
    "alter table t add e enum(x'c3a9', 'b') character set utf8mb4 default 'b',"
    " connection = 'mysql://u:hush@h/d'"
)


@pytest.mark.usefixtures("both_ways")
def test_a_definition_that_is_not_understood_is_asked_for_when_nothing_later_alters_it(
    database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    database.run("create table t (id int primary key)")
    with opened(watching(database, tmp_path, "t")) as source:
        database.run("insert into t values (1)", BY_BYTES, "insert into t values (2, 1)")
        rows = [change.row for change in read_changes(source, 2)]
    assert rows == [{"id": 1}, {"id": 2, "e": "é"}]
    assert "the database was asked what it left of" in caplog.text
    assert "hush" not in caplog.text


def test_a_definition_that_is_not_understood_and_was_altered_again_stops_with_what_to_do(
    database: Database, tmp_path: Path
) -> None:
    database.run("create table t (id int primary key)")
    with opened(watching(database, tmp_path, "t")) as source:
        database.run(BY_BYTES, "alter table t add f int")
        with pytest.raises(SourceStoppedError) as stopped:
            read_changes(source, 1)
    text = str(stopped.value)
    assert f"names {database.name}.t and cannot be followed" in text
    assert f"`databus schema repair {database.name}.t --scn " in text
    assert "hush" not in text


@pytest.mark.parametrize(
    "text",
    [
        "alter table t add e enum(x'c3a9'), rename to u",
        "create or replace table t (e enum(x'c3a9'))",
    ],
)
def test_a_statement_that_may_have_changed_rows_is_never_asked_for(
    database: Database, tmp_path: Path, text: str
) -> None:
    database.run("create table t (id int primary key)")
    with opened(watching(database, tmp_path, "t")) as source:
        try:
            database.run(text)
        except MySQLError:
            return  # MySQL has no CREATE OR REPLACE TABLE
        with pytest.raises(SourceStoppedError, match="databus schema repair"):
            read_changes(source, 1)
