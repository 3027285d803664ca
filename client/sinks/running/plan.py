"""What a sink does, made from its settings once, before it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from databus.client.dead_letters import DeadLetterFile
from databus.client.events.row_condition import row_condition
from databus.client.sinks.contract import HasUniqueKeys, Sink
from databus.client.sinks.isolated.maker import IsolatedMaker
from databus.client.sinks.loading import has_option, says
from databus.client.sinks.rules.changes import TableRule
from databus.client.sinks.rules.failures import FailureKind, FailureRule, Then
from databus.client.sinks.rules.masks import keeps_keys_apart, leaves_text, make_mask
from databus.conf.patterns import NamePatterns, is_pattern
from databus.conf.sink_settings import FailureRuleSettings, SinkSettings, SinkTableSettings
from databus.relay.sources.masks import MaskKey
from databus.schemas.errors import SettingsError

_ALL = TableRule()
_CHOICE = "exactly_once"  # the option of sinks that keep their position only if they should


@dataclass(frozen=True)
class SinkPlan:
    """A sink's settings, and what is made of them."""

    settings: SinkSettings
    make: Callable[[], Sink]
    rule_of: Callable[[str], TableRule]
    dead_letters: DeadLetterFile | None

    @property
    def name(self) -> str:
        """The sink's name."""
        return self.settings.name

    @property
    def has_one_position(self) -> bool:
        """Whether the target keeps the position of one physical source."""
        return says(self.make, "keeps_position") and not says(self.make, "has_position_per_source")

    @property
    def isolated(self) -> IsolatedMaker | None:
        """What makes it, if its code runs in processes of its own."""
        return self.make if isinstance(self.make, IsolatedMaker) else None

    def check(self) -> None:
        """Load the class of an isolated sink in a process; raise SettingsError."""
        if self.isolated is not None and self.isolated.facts().keeps_position:
            self.check_lanes()

    def check_lanes(self) -> None:
        """Raise SettingsError if a sink that keeps its position has several lanes."""
        if self.settings.lanes > 1:
            # Of isolated code only its class knows the options, and the settings what was given.
            may_choose = has_option(self.make, _CHOICE) or _CHOICE in self.settings.options
            advice = f", or set options.{_CHOICE} = false" if may_choose else ""
            raise SettingsError(
                f"lanes = {self.settings.lanes}: {self.settings.kind} has one lane, because its "
                f"target keeps one position: set lanes = 1{advice}"
            )

    @cached_property
    def failure_rules(self) -> Mapping[FailureKind, FailureRule]:
        """The rule for each kind of failure."""
        given = self.settings.failures
        return {
            FailureKind.UNAVAILABLE: _rule(given.unavailable),
            FailureKind.REFUSED: _rule(given.refused),
            FailureKind.OTHER: _rule(given.other),
        }

    def unique_keys(self, sink: Sink, source: str) -> Sequence[Sequence[str]]:
        """Return the target's unique keys besides the primary key, by settings and by the sink."""
        named = _first(self.settings.tables, source)
        keys = named.unique_keys if named is not None else ()
        return keys or (sink.unique_keys(source) if isinstance(sink, HasUniqueKeys) else ())


def make_plan(
    settings: SinkSettings, make: Callable[[], Sink], dead_letters: Path | None = None
) -> SinkPlan:
    """Return the plan of a sink; raise SettingsError for conditions, masks and files."""
    path = settings.mask_key_file
    key = None if path is None else MaskKey.read(path)
    rules = [_table_rule(table, key) for table in settings.tables]

    @lru_cache(maxsize=10_000)
    def rule_of(source: str) -> TableRule:
        for table, rule in zip(settings.tables, rules, strict=True):
            if NamePatterns(table.sources).match(source):
                return rule
        return _ALL

    path = settings.failures.dead_letters or dead_letters
    kinds = (settings.failures.unavailable, settings.failures.refused, settings.failures.other)
    if path is None and any(one.then == "dead-letter" for one in kinds):
        raise SettingsError("name a file with failures.dead_letters")
    plan = SinkPlan(settings, make, rule_of, None if path is None else DeadLetterFile(path))
    # Code that is isolated is looked at later: when it is opened, or by `config check`.
    if plan.isolated is None and says(make, "keeps_position"):
        plan.check_lanes()
    return plan


def _first(tables: Sequence[SinkTableSettings], source: str) -> SinkTableSettings | None:
    return next((one for one in tables if NamePatterns(one.sources).match(source)), None)


def _rule(given: FailureRuleSettings) -> FailureRule:
    return FailureRule(None if given.retries < 0 else given.retries, Then(given.then))


def _table_rule(table: SinkTableSettings, key: MaskKey | None) -> TableRule:
    # Tables that a pattern matches need not all have the same columns.
    is_exact = not any(map(is_pattern, table.sources))
    named = {*table.columns, *table.without, *table.mask, *table.rename}
    return TableRule(
        needed=frozenset(named) if is_exact else frozenset(),
        where=row_condition(table.where) if table.where else None,
        columns=frozenset(table.columns) or None,
        without=frozenset(table.without),
        masks={column: make_mask(text, key) for column, text in table.mask.items()},
        names=table.rename,
        texts=frozenset(column for column, text in table.mask.items() if leaves_text(text)),
        blurred=frozenset(
            column for column, text in table.mask.items() if not keeps_keys_apart(text)
        ),
    )
