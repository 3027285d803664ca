"""Schemas that no table has: written by hand, and made at random from a fixed seed."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

_RANDOM_COUNT = 150
_CONTROLS = "\x00\x01\x08\t\n\x0b\f\r\x1f\x7f\x80"
_WORDS = [
    *("a", "b", "meta", "logicalType", "doc", "é", "Aa", "BB", "AaAa", "BBBB", "AaBB", "BBAa"),
    *("sqlType", "startScn", "key", "k1", "k2", "日本", "😀", "", 'quo"te', "back\\slash", "x/y"),
    _CONTROLS,
]
_DOUBLES = [0.5, -0.0, 1e7, 9999999.0, 1e-3, 9.99e-4, 1.5e300, 12345.678, 5e-324, 1e22, 100.0]
_INTEGERS = [0, -1, 2**31, 2**63 - 1, -(2**63), 2**63, 2**100 + 5, -(2**70) - 3]


def odd_schemas() -> list[str]:
    """Return texts of schemas, always the same."""
    made = [_RandomSchema(Random(seed)).text() for seed in range(_RANDOM_COUNT)]
    return [*_by_hand(), *made]


def _by_hand() -> list[str]:
    defaults = [
        *("1", "-0", "1.50", "1e5", "1E+7", "0.001", "1e-4", "1e400", "-1e400", "null", "true"),
        *('"\\ud83d\\ude00 \\u00e9 \\/ \\u001f"', '{"z":1,"a":[1,{"b":null}]}', "[]", "{}"),
        *("9223372036854775807", "9223372036854775808", '"\\ud800"'),
    ]
    fields = [
        *(f'{{"name":"f","type":"int","default":{default}}}' for default in defaults),
        '{"name":"f","type":"int","doc":"\\"a\\"\\\\ \\n é 日本"}',
        '{"name":"f","type":"int","doc":5,"aliases":["g"],"order":"ascending"}',
        '{"order":"IGNORE","meta":"x;","default":1,"doc":"d","type":"int","name":"f"}',
        '{"name":"f","type":"int","order":"descending","p":1,"q":{"r":1},"s":["t"],"u":true}',
        '{"name":"f","type":{"type":"int"}}',
        '{"name":"f","type":{"type":"bytes","logicalType":"decimal","precision":5,"scale":2}}',
        '{"name":"f","type":{"type":"string","doc":"d","size":1,"name":"n","default":"x"}}',
        '{"name":"f","type":{"type":"array","items":["null",{"type":"map","values":"R"}]}}',
        '{"name":"f","type":["null",{"type":"fixed","size":16,"name":"F","doc":"d"}]}',
        '{"name":"f","type":{"type":"enum","symbols":["A","é"],"name":"E","default":"A"}}',
        '{"name":"f","type":"int","type":"long"}',
        '{"name":"f","type":"Missing"}',
        '{"name":"f","type":{"type":{"type":"int"}}}',
        '{"name":"f","type":"int","order":"sideways"}',
    ]
    records = [f'{{"type":"record","name":"R","fields":[{one}]}}' for one in fields]
    return [*records, *_RECORDS, '"int"', '["null","string"]', '{"type":"map","values":"int"}', "{"]


_INNER = '{"name":"f","type":{"type":"fixed","name":"F","namespace":"inner","size":4}}'
_AFTER = '{"name":"g","type":{"type":"enum","name":"E","symbols":["A"]}}'
_RECORDS = [
    '{"type":"record","name":"R","namespace":"a.b","doc":"d","aliases":["X","y.Z"],"fields":[]}',
    '{"type":"record","name":"a.b.R","namespace":"ignored","aliases":[],"fields":[]}',
    '{"type":"error","name":"R","namespace":"","fields":[]}',
    '{"type":"record","name":"R","namespace":null,"doc":7,"fields":[]}',
    f'{{"type":"record","name":"R","fields":[{_INNER},{_AFTER},{{"name":"h","type":"F"}}]}}',
    f'{{"type":"record","name":"R","namespace":"a","fields":[{_INNER},{_AFTER},'
    '{"name":"h","type":"inner.F"},{"name":"i","type":"E"},{"name":"j","type":"a.R"}]}',
    '{"type":"record","name":"R","fields":[{"name":"next","type":["null","R"]}]}',
    '{"type":"record","name":"R","fields":[{"name":"a","type":{"type":"record","name":"R",'
    '"fields":[]}}]}',
    '{ "fields" : [ ] , "name" : "R" ,\n "type" : "record" , "meta":"a=1;" , "other": "b" }',
]


class _RandomSchema:
    """Makes one record, of any types and attributes, defining and using names."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._names: list[str] = []

    def text(self) -> str:
        return json.dumps(self._record(0), ensure_ascii=self._random.random() < 0.5)

    def _record(self, depth: int) -> dict[str, Any]:
        record: dict[str, Any] = {"type": "record" if self._random.random() < 0.9 else "error"}
        self._name(record)
        count = self._random.randrange(5)
        record["fields"] = [self._field(f"f{number}", depth) for number in range(count)]
        return self._with_attributes(record)

    def _field(self, name: str, depth: int) -> dict[str, Any]:
        field: dict[str, Any] = {"name": name, "type": self._type(depth + 1)}
        extras: dict[str, Callable[[], Any]] = {
            "doc": lambda: self._random.choice(["d", "é\n", 5, None]),
            "default": lambda: self._value(0),
            "order": lambda: self._random.choice(["ascending", "descending", "ignore"]),
            "aliases": lambda: ["other"],
        }
        field |= {key: make() for key, make in extras.items() if self._random.random() < 0.3}
        return self._with_attributes(field)

    def _type(self, depth: int) -> Any:
        plain = self._random.choice(["int", "long", "string", "bytes", "double", "boolean"])
        if depth > 3:
            return plain
        named: dict[str, Any]
        match self._random.randrange(12):
            case 0 | 1:
                return self._with_attributes({"type": plain})
            case 2 if self._names:
                return self._random.choice(self._names)
            case 3:
                named = {"type": "enum", "symbols": self._random.sample("ABCD", 2)}
                self._name(named)
                return self._with_attributes(named)
            case 4:
                named = {"type": "fixed", "size": self._random.randrange(20)}
                self._name(named)
                return self._with_attributes(named)
            case 5:
                return self._with_attributes({"type": "array", "items": self._type(depth + 1)})
            case 6:
                return self._with_attributes({"type": "map", "values": self._type(depth + 1)})
            case 7:
                return ["null", self._record(depth + 1)]
            case 8:
                return ["null", plain]
            case 9:
                return self._record(depth + 1)
        return plain

    def _name(self, schema: dict[str, Any]) -> None:
        name = f"T{len(self._names)}"
        if self._random.random() < 0.4:
            schema["namespace"] = self._random.choice(["n.a", "n.b", "n", "", None, 5])
        elif self._random.random() < 0.1:
            name = f"n.a.{name}"
        schema["name"] = name
        if self._random.random() < 0.3:
            schema["doc"] = self._value(0)
        if self._random.random() < 0.3:
            others = ["A", "B", "n.a.C", "n.b.D", "Aa", "BB", "n.a.Z"]
            schema["aliases"] = self._random.sample(others, self._random.randrange(5))
        self._names.append(name)

    def _with_attributes(self, schema: dict[str, Any]) -> dict[str, Any]:
        for _ in range(self._random.choice([0, 0, 0, 1, 1, 2, 3, 6, 14])):
            key = self._random.choice(_WORDS) + self._random.choice(["", "1", "2"])
            if key not in ("doc", "name", "type"):
                schema[key] = self._random.choice([self._value(0), self._random.choice(_WORDS)])
        members = list(schema.items())
        self._random.shuffle(members)
        return dict(members)

    def _value(self, depth: int) -> Any:
        match self._random.randrange(8 if depth < 2 else 6):
            case 0:
                return self._random.choice([None, True, False])
            case 1:
                return self._random.choice(_INTEGERS)
            case 2:
                return self._random.choice(_DOUBLES)
            case 6:
                keys = self._random.sample(_WORDS, self._random.randrange(4))
                return {key: self._value(depth + 1) for key in keys}
            case 7:
                return [self._value(depth + 1) for _ in range(self._random.randrange(4))]
        return self._random.choice(_WORDS)
