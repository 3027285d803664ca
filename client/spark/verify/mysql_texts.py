"""The texts of `texts`, as SQL that MySQL and MariaDB understand. Pure.

For a session in UTC whose connection character set is utf8mb4 and whose
`sql_mode` is empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from databus.client.spark.arrow.avro_columns import AvroColumn, Kind
from databus.client.spark.verify.texts import END, HEX_DIGITS, NULL_TEXT, Form, base_type, form_of
from databus.relay.sources.mysql.tables.ddl_tokens import quote

_DIALECT = "mysql"


@dataclass(frozen=True, slots=True)
class MysqlTexts:
    """What depends on the server, and on how its relay is set up."""

    is_mariadb: bool = True
    zero_dates_are_null: bool = False

    def digest(self, columns: Sequence[AvroColumn]) -> str:
        """Return the expression of a row's digest."""
        parts = (f"IFNULL(CONCAT({self.text(one)}, '{END}'), '{NULL_TEXT}')" for one in columns)
        md5 = f"MD5(CONCAT({', '.join(parts)}))"
        return f"CAST(CONV(LEFT({md5}, {HEX_DIGITS}), 16, 10) AS UNSIGNED)"

    def text(self, column: AvroColumn) -> str:
        """Return the expression of a value's text, NULL for NULL."""
        name = quote(column.name)
        form = form_of(column, _DIALECT)
        if form is Form.DOUBLE:
            return self._double(name)
        if column.kind is Kind.TIME:
            return f"TIMESTAMPDIFF(MICROSECOND, '2000-01-01', TIMESTAMP('2000-01-01', {name}))"
        if form is Form.BYTES and base_type(column.sql_type) == "bit":
            return f"LPAD(HEX({name} + 0), {_bit_digits(column.sql_type)}, '0')"
        if column.sql_type == "year(2)":
            return f"YEAR({name})"
        text = _PLAIN[form].format(name)
        if self.zero_dates_are_null and form in (Form.DATE, Form.DATETIME, Form.TIMESTAMP):
            # What is no date in any other place is null there.
            is_date = f"YEAR({name}) > 0 AND DAYOFMONTH({name}) BETWEEN 1 AND "
            return f"IF({is_date}DAYOFMONTH(LAST_DAY({name})), {text}, NULL)"
        return text

    def _double(self, name: str) -> str:
        # Digits that are declared, FLOAT(7,2), cut what is shown; those of a product are all there.
        shown = f"{name} * 1e0" if self.is_mariadb else f"CAST({name} * 1e0 AS JSON)"
        # MySQL cuts the digits of a long number wherever it makes it a text, but in JSON.
        shown = f"CAST({shown} AS CHAR)"
        mantissa = f"REPLACE(SUBSTRING_INDEX({shown}, 'e', 1), '-', '')"
        digits = f"REPLACE({mantissa}, '.', '')"
        exponent = f"IF(LOCATE('e', {shown}) > 0, SUBSTRING_INDEX({shown}, 'e', -1) + 0, 0)"
        # Zeros before the first digit that counts are places less.
        place = (
            f"CAST(LENGTH(SUBSTRING_INDEX({mantissa}, '.', 1)) - LENGTH({digits}) "
            f"+ LENGTH(TRIM(LEADING '0' FROM {digits})) + {exponent} AS SIGNED)"
        )
        number = f"CONCAT(IF({name} < 0, '-', ''), TRIM(BOTH '0' FROM {digits}), 'e', {place})"
        return f"IF({name} = 0, '0', {number})"


_PLAIN = {
    # With 0 added, for ZEROFILL also fills what is cast.
    Form.NUMBER: "{0} + 0",
    Form.DECIMAL: "{0} + 0",
    Form.WIDE_DECIMAL: "{0} + 0",
    Form.DATE: "CAST({0} AS CHAR)",
    Form.DATETIME: "TRIM(TRAILING '.' FROM TRIM(TRAILING '0' FROM "
    "DATE_FORMAT({0}, '%Y-%m-%d %H:%i:%s.%f')))",
    Form.TIMESTAMP: "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', {0})",
    Form.TEXT: "CONCAT(LENGTH(CONVERT({0} USING utf8mb4)), ':', CONVERT({0} USING utf8mb4))",
    Form.TEXT_MD5: "MD5(CONVERT({0} USING utf8mb4))",
    Form.JSON: "MD5(CONVERT({0} USING utf8mb4))",
    Form.BYTES: "HEX({0})",
    Form.BYTES_MD5: "MD5({0})",
    Form.INET6: "HEX(CAST({0} AS BINARY(16)))",
}


def _bit_digits(sql_type: str) -> int:
    inside = sql_type.partition("(")[2].partition(")")[0]
    return (int(inside or 1) + 7) // 8 * 2
