"""The texts of `texts` as SQL expressions of MySQL and MariaDB. Pure.

They need a session in UTC with connection character set utf8mb4 and empty `sql_mode`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from databus.client.spark.verify.texts import END, HEX_DIGITS, NULL_TEXT, Form, base_type, form_of
from databus.relay.sources.mysql.tables.ddl_tokens import quote
from databus.schemas.columns.avro_columns import AvroColumn, Kind

_DIALECT = "mysql"


@dataclass(frozen=True, slots=True)
class MysqlTexts:
    """SQL expressions, by the server's kind and the relay's settings."""

    is_mariadb: bool = True
    zero_dates_are_null: bool = False

    def digest(self, columns: Sequence[AvroColumn]) -> str:
        """Return the expression of a row's digest."""
        parts = (f"IFNULL(CONCAT({self.text(one)}, '{END}'), '{NULL_TEXT}')" for one in columns)
        md5 = f"MD5(CONCAT({', '.join(parts)}))"
        # 60 bits, so that Spark's signed bigint holds them, too.
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
            # The relay delivers an invalid date as null.
            is_date = f"YEAR({name}) > 0 AND DAYOFMONTH({name}) BETWEEN 1 AND "
            return f"IF({is_date}DAYOFMONTH(LAST_DAY({name})), {text}, NULL)"
        return text

    def _double(self, name: str) -> str:
        # FLOAT(7,2) shows only the declared digits; a product shows all of them.
        shown = f"{name} * 1e0" if self.is_mariadb else f"CAST({name} * 1e0 AS JSON)"
        # MySQL rounds a long number in every conversion to text, except through JSON.
        shown = f"CAST({shown} AS CHAR)"
        mantissa = f"REPLACE(SUBSTRING_INDEX({shown}, 'e', 1), '-', '')"
        digits = f"REPLACE({mantissa}, '.', '')"
        exponent = f"IF(LOCATE('e', {shown}) > 0, SUBSTRING_INDEX({shown}, 'e', -1) + 0, 0)"
        # Leading zeros do not count as places.
        place = (
            f"CAST(LENGTH(SUBSTRING_INDEX({mantissa}, '.', 1)) - LENGTH({digits}) "
            f"+ LENGTH(TRIM(LEADING '0' FROM {digits})) + {exponent} AS SIGNED)"
        )
        number = f"CONCAT(IF({name} < 0, '-', ''), TRIM(BOTH '0' FROM {digits}), 'e', {place})"
        return f"IF({name} = 0, '0', {number})"


_PLAIN = {
    # Adding 0 removes ZEROFILL, which a cast keeps.
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
