"""The query string of `/stream` and of the other commands that name sources.

Parameters come as text, already split at `&`; JSON in them may be URL-encoded or not. The
result is valid: every error is rejected here, with the parameter's name and the rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from databus.conf.settings import HttpSettings
from databus.relay.catalog import Catalog
from databus.relay.ring.row_count import Limits
from databus.relay.ring.selection import Selection
from databus.schemas.checkpoint import Checkpoint, CheckpointMult
from databus.schemas.errors import InvalidParameterError
from databus.schemas.filters import EventFilter, parse_filters
from databus.schemas.parameters import parse_bool, parse_form, parse_json, parse_number
from databus.schemas.protocol import Parameter
from databus.schemas.rendering import AnswerForm
from databus.schemas.scn import MAX_SCN

MAX_SUBSCRIPTIONS = 1000
REMEMBERED = 32  # requests, each of at most a few times http.max_filter_bytes
ANY_PARTITION = "*"  # LinkedIn's client does not name the physical source that it reads


@dataclass(frozen=True, slots=True)
class StreamRequest:
    """A valid stream request.

    `is_together`: it has `checkPointMult`, so the position to continue from is sent per
    physical source, however many there are. `may_follow`: the answer may go on with windows
    that come while it is sent, until `wait_ms` is over. `is_compressed`: the client wants
    windows compressed with zstd, also those that do not lie on disk.
    """

    selections: tuple[Selection, ...]
    form: AnswerForm
    wait_ms: int = 0
    is_together: bool = False
    may_follow: bool = False
    is_compressed: bool = False


@dataclass(frozen=True, slots=True)
class MeasureRequest:
    """A valid request to measure how far the limits reach from the start of a selection.

    `since_ns`: start with the first window committed at that time or later. `wants_mark`: the
    answer has a window that proves later that the log is the same.
    """

    selection: Selection
    limits: Limits
    since_ns: int | None = None
    wants_mark: bool = False


def parse_stream_request(
    parameters: Mapping[str, str], catalog: Catalog, limits: HttpSettings
) -> StreamRequest:
    """Return the request; raise InvalidParameterError, UnknownSourceError, CheckpointError."""
    selections = _parse_selections(parameters, catalog, limits)
    form = parse_form(parameters, Parameter.SIZE, limits.max_response_bytes)
    wait_ms = min(parse_number(parameters, Parameter.WAIT_MS, 0, least=0), limits.max_wait_ms)
    is_together = Parameter.CHECKPOINT_MULT in parameters
    # What has an end, or several positions, is answered as a whole.
    has_end = selections[0].until_scn != MAX_SCN
    wants_more = parse_bool(parameters, Parameter.FOLLOW) and wait_ms > 0
    may_follow = wants_more and not is_together and not has_end
    is_compressed = parse_bool(parameters, Parameter.COMPRESS)
    return StreamRequest(selections, form, wait_ms, is_together, may_follow, is_compressed)


class StreamRequests:
    """Parses the stream requests of a relay: equal ones, as of readers at one place, only once."""

    def __init__(self, catalog: Catalog, limits: HttpSettings) -> None:
        self._catalog = catalog
        self._limits = limits
        self._parse = lru_cache(REMEMBERED)(self._parse_items)

    def parse(self, parameters: Mapping[str, str]) -> StreamRequest:
        """Return a request; the errors are those of `parse_stream_request`."""
        return self._parse(tuple(parameters.items()))

    def _parse_items(self, items: tuple[tuple[str, str], ...]) -> StreamRequest:
        return parse_stream_request(dict(items), self._catalog, self._limits)


def parse_measure_request(
    parameters: Mapping[str, str], catalog: Catalog, limits: HttpSettings
) -> MeasureRequest:
    """Return the request; raise InvalidParameterError, UnknownSourceError, CheckpointError."""
    if Parameter.CHECKPOINT_MULT in parameters:
        raise InvalidParameterError(
            Parameter.CHECKPOINT_MULT,
            parameters[Parameter.CHECKPOINT_MULT],
            "physical sources are measured one at a time",
        )
    (selection,) = _parse_selections(parameters, catalog, limits)
    since_ms = _parse_since(parameters, selection)
    return MeasureRequest(
        selection,
        Limits(
            rows=_parse_limit(parameters, Parameter.ROWS),
            size_bytes=_parse_limit(parameters, Parameter.BYTES),
            until_scn=selection.until_scn,
        ),
        None if since_ms is None else min(since_ms * 1_000_000, MAX_SCN),
        parse_bool(parameters, Parameter.MARK),
    )


def _parse_selections(
    parameters: Mapping[str, str], catalog: Catalog, limits: HttpSettings
) -> tuple[Selection, ...]:
    wanted = _wanted_ids(parameters, catalog)
    filters = _parse_filters(parameters, limits)
    from_latest = parse_bool(parameters, Parameter.FROM_LATEST)
    wants_ddl = parse_bool(parameters, Parameter.DDL)
    wants_truncates = parse_bool(parameters, Parameter.TRUNCATE)
    checkpoints = _parse_checkpoints(parameters, wanted)
    until_scn = _parse_until(parameters, checkpoints)
    return tuple(
        Selection(
            physical_source=name,
            checkpoint=checkpoints[name],
            src_ids=_unless_all(ids, name, catalog),
            filters={i: f for i, f in filters.items() if i in ids},
            from_latest=from_latest,
            wants_ddl=wants_ddl,
            wants_truncates=wants_truncates,
            until_scn=until_scn,
            log_src_id=catalog.src_ids_of(name).get(checkpoints[name].log_source),
        )
        for name, ids in wanted.items()
    )


def _parse_until(parameters: Mapping[str, str], checkpoints: Mapping[str, Checkpoint]) -> int:
    until_scn = parse_number(parameters, Parameter.UNTIL_SCN, MAX_SCN, least=0)
    if until_scn == MAX_SCN:
        return until_scn
    if until_scn > MAX_SCN:
        raise InvalidParameterError(Parameter.UNTIL_SCN, str(until_scn), f"at most {MAX_SCN}")
    if Parameter.CHECKPOINT_MULT in parameters:
        raise InvalidParameterError(
            Parameter.UNTIL_SCN,
            str(until_scn),
            "SCNs of several physical sources cannot be compared",
        )
    for checkpoint in checkpoints.values():
        # Otherwise the answer would be empty for ever, and the reader could not tell why.
        if checkpoint.window_scn > until_scn:
            raise InvalidParameterError(
                Parameter.UNTIL_SCN,
                str(until_scn),
                f"not below the checkpoint's windowScn {checkpoint.window_scn}",
            )
    return until_scn


def _parse_limit(parameters: Mapping[str, str], name: str) -> int:
    return min(parse_number(parameters, name, MAX_SCN, least=1), MAX_SCN)


def _parse_since(parameters: Mapping[str, str], selection: Selection) -> int | None:
    if not parameters.get(Parameter.SINCE_MS, "").strip():
        return None
    since_ms = parse_number(parameters, Parameter.SINCE_MS, 0, least=0)
    if selection.from_latest or not selection.checkpoint.is_flexible:
        raise InvalidParameterError(
            Parameter.SINCE_MS, str(since_ms), "not with `checkPoint` or `streamFromLatestScn`"
        )
    return since_ms


def parse_source_list(parameters: Mapping[str, str], catalog: Catalog) -> list[int]:
    """Return the ids in the `sources` parameter, given as ids or names; all without it."""
    text = parameters.get(Parameter.SOURCES, "").strip()
    if not text:
        return list(catalog.ids.values())
    return list(dict.fromkeys(catalog.resolve(part) for part in text.split(",")))


def _wanted_ids(parameters: Mapping[str, str], catalog: Catalog) -> dict[str, frozenset[int]]:
    """Return the requested ids, by physical source."""
    if Parameter.SOURCES in parameters:
        ids = set(parse_source_list(parameters, catalog))
    elif Parameter.SUBSCRIPTIONS in parameters:
        ids = set(_parse_subscriptions(parameters[Parameter.SUBSCRIPTIONS], catalog))
    else:
        raise InvalidParameterError(Parameter.SOURCES, "", "this or `subs` is required")
    # Physical sources in the order of the settings, whatever the order of the request.
    by_source = {
        name: frozenset(ids & set(catalog.src_ids_of(name).values())) for name in catalog.members
    }
    return {name: found for name, found in by_source.items() if found}


def _parse_subscriptions(text: str, catalog: Catalog) -> Iterable[int]:
    value = parse_json(Parameter.SUBSCRIPTIONS, text)
    listed = value if isinstance(value, list) else [value]
    if not listed or len(listed) > MAX_SUBSCRIPTIONS:
        raise InvalidParameterError(
            Parameter.SUBSCRIPTIONS, text, f"1 to {MAX_SUBSCRIPTIONS} subscriptions"
        )
    for subscription in listed:
        if not isinstance(subscription, dict):
            raise InvalidParameterError(
                Parameter.SUBSCRIPTIONS, text, "each subscription is a JSON object"
            )
        yield from _ids_of_subscription(subscription, text, catalog)


def _ids_of_subscription(
    subscription: dict[str, Any], text: str, catalog: Catalog
) -> Iterable[int]:
    source = _object_at(_object_at(subscription, "logicalPartition"), "source")
    name, src_id = source.get("name"), source.get("id")
    # The original Databus writes a wildcard in several ways.
    if name in (None, "", "*") and src_id in (None, -1):
        return _ids_of_physical_source(subscription, text, catalog)
    if isinstance(src_id, int) and src_id > 0:
        return [catalog.resolve(str(src_id))]
    if isinstance(name, str) and name:
        return [catalog.resolve(name)]
    raise InvalidParameterError(
        Parameter.SUBSCRIPTIONS, text, "a source has an `id`, a `name`, or is `*`"
    )


def _ids_of_physical_source(
    subscription: dict[str, Any], text: str, catalog: Catalog
) -> Iterable[int]:
    name = _object_at(subscription, "physicalPartition").get("name")
    if name in (None, "", "*"):
        return list(catalog.ids.values())
    if not isinstance(name, str) or name not in catalog.members:
        raise InvalidParameterError(
            Parameter.SUBSCRIPTIONS, text, f"no physical source is called {name!r}"
        )
    return catalog.src_ids_of(name).values()


def _object_at(value: dict[str, Any], key: str) -> dict[str, Any]:
    found = value.get(key)
    return found if isinstance(found, dict) else {}


def _parse_checkpoints(
    parameters: Mapping[str, str], wanted: Mapping[str, frozenset[int]]
) -> dict[str, Checkpoint]:
    if Parameter.CHECKPOINT_MULT in parameters:
        return _parse_checkpoint_mult(parameters[Parameter.CHECKPOINT_MULT], wanted)
    if len(wanted) > 1:
        raise InvalidParameterError(
            Parameter.SOURCES,
            parameters.get(Parameter.SOURCES, parameters.get(Parameter.SUBSCRIPTIONS, "")),
            f"they belong to several physical sources ({', '.join(wanted)}): "
            "request one at a time, or send `checkPointMult`",
        )
    text = parameters.get(Parameter.CHECKPOINT, "").strip()
    checkpoint = Checkpoint.from_json(text) if text else Checkpoint.flexible()
    return {name: _readable(checkpoint, text) for name in wanted}


def _parse_checkpoint_mult(
    text: str, wanted: Mapping[str, frozenset[int]]
) -> dict[str, Checkpoint]:
    by_partition = CheckpointMult.from_json(text).by_partition
    given = {_partition_name(partition): found for partition, found in by_partition.items()}
    of_any = given.get(ANY_PARTITION)
    if of_any is not None and len(wanted) == 1:
        given = dict.fromkeys(wanted, of_any) | given
    # Without a checkpoint a source would silently start at its oldest window.
    missing = [name for name in wanted if name not in given]
    if missing:
        raise InvalidParameterError(
            Parameter.CHECKPOINT_MULT,
            text,
            f"no checkpoint for physical source {', '.join(missing)}",
        )
    return {name: _readable(given[name], text) for name in wanted}


def _partition_name(text: str) -> str:
    """Return the name in a physical partition's JSON; a plain name is returned as it is."""
    value = parse_json(Parameter.CHECKPOINT_MULT, text) if text.startswith("{") else {"name": text}
    name = value.get("name")
    if not isinstance(name, str) or not name:
        raise InvalidParameterError(
            Parameter.CHECKPOINT_MULT, text, "a physical partition has a `name`"
        )
    return name


def _readable(checkpoint: Checkpoint, text: str) -> Checkpoint:
    if checkpoint.is_bootstrap:
        raise InvalidParameterError(
            Parameter.CHECKPOINT, text, "a checkpoint in bootstrap mode is for a bootstrap server"
        )
    return checkpoint


def _parse_filters(
    parameters: Mapping[str, str], limits: HttpSettings
) -> Mapping[int, EventFilter]:
    text = parameters.get(Parameter.FILTERS, "").strip()
    return parse_filters(text, max_chars=limits.max_filter_bytes) if text else {}


def _unless_all(ids: frozenset[int], name: str, catalog: Catalog) -> frozenset[int] | None:
    # None lets the relay copy whole windows instead of selecting events. Not where the ring may
    # have events of a source that is no longer listed: nobody asks for those.
    # And not where patterns may add one while the request is answered.
    is_all = ids == frozenset(catalog.src_ids_of(name).values()) and not catalog.former_ids
    return None if is_all and name not in catalog.growing else ids
