"""What a group is, who is in it and who is to own what: one record, the same for all. Pure.

    {"group": "billing", "partitions": 32, "sources": ["shop.orders"], "partition_by": [],
     "generation": 0, "room": "", "number": 12, "halted": "",
     "members": {"0.3": {"process": "host-a:4711:9f31", "room": "a"}, …},
     "owners": ["0.3", …], "crc": "…"}

Its first member writes it. Whoever joins, leaves, or finds that another one has gone, replaces it
by one with the members that are left, and their partitions. A group that is `halted` has owners of
none: somebody resizes it, or moves its position. A replacement names what was read, so
the assignments of a group are one after another, each with as few moves as possible after the one
before it. `number` counts them. A member is named after its slot, the lease that it holds while it
is there, and the term of that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from databus.groups.assignment import assign, members_of_room
from databus.leases.checked_json import decode_checked, encode_checked
from databus.leases.errors import LeaseError
from databus.schemas.errors import SettingsError
from databus.schemas.filters import MAX_PARTITIONS


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """What all members of a group must agree on."""

    group: str
    partitions: int
    sources: tuple[str, ...]
    partition_by: tuple[str, ...] = ()
    generation: int = 0
    room: str = ""
    """The room whose members own the partitions, while it has any; "" = those of all rooms."""

    def __post_init__(self) -> None:
        if not self.group or not 1 <= self.partitions <= MAX_PARTITIONS:
            raise SettingsError(
                f"group = {self.group!r}, partitions = {self.partitions}: give a name, and 1 to "
                f"{MAX_PARTITIONS} partitions"
            )

    def check_same(self, own: GroupFacts) -> None:
        """Raise SettingsError if a process that wants to join has other facts."""
        different = [
            f"{one.name} = {getattr(self, one.name)!r}, not {getattr(own, one.name)!r}"
            for one in fields(self)
            if getattr(self, one.name) != getattr(own, one.name)
        ]
        if different:
            raise SettingsError(
                f"group {self.group!r} has {'; '.join(different)}: give this process the same as "
                "the group's others, or another group"
            )


@dataclass(frozen=True, slots=True)
class Process:
    """Where a member runs, for people, and the room it is in."""

    process: str
    room: str = ""


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """A group with its newest assignment."""

    facts: GroupFacts
    number: int = 0
    members: Mapping[str, Process] = field(default_factory=dict)
    owners: Mapping[int, str] = field(default_factory=dict)
    """Who is to own each partition; none while there are no members, or it is halted."""
    halted: str = ""
    """Why nobody is to own any partition now; "" = all are owned."""

    def partitions_of(self, member: str) -> frozenset[int]:
        """Return the partitions that a member is to own."""
        return frozenset(number for number, owner in self.owners.items() if owner == member)

    def after(self, member: str, count: int) -> list[str]:
        """Return the next members after one, in a circle, at most `count`: it watches those."""
        ordered = sorted(self.members, key=slot_and_term)
        place = slot_and_term(member)
        later = [one for one in ordered if slot_and_term(one) > place]
        earlier = [one for one in ordered if slot_and_term(one) < place]
        return [*later, *earlier][:count]

    def with_members(self, members: Mapping[str, Process]) -> GroupRecord:
        """Return the next record: with these members, and each partition at one of them."""
        rooms = {name: one.room for name, one in members.items()}
        active = () if self.halted else members_of_room(rooms, self.facts.room)
        owners = assign(active, self.facts.partitions, self.owners)
        return replace(self, number=self.number + 1, members=dict(members), owners=owners)

    def encode(self) -> bytes:
        """Return the record's JSON."""
        values: dict[str, Any] = asdict(self.facts) | {"number": self.number, "halted": self.halted}
        values["members"] = {name: asdict(one) for name, one in sorted(self.members.items())}
        values["owners"] = [self.owners[number] for number in sorted(self.owners)]
        return encode_checked(values)

    @classmethod
    def decode(cls, data: bytes, group: str, store: str) -> GroupRecord:
        """Read a record; raise LeaseError if it is damaged, or the record of another group."""
        try:
            values = decode_checked(data)
            owners = dict(enumerate(values.pop("owners")))
            members = {name: Process(**one) for name, one in values.pop("members").items()}
            number, halted = values.pop("number"), values.pop("halted")
            sources, by = tuple(values.pop("sources")), tuple(values.pop("partition_by"))
            facts = GroupFacts(sources=sources, partition_by=by, **values)
            _check(facts, group, members, owners)
        except (ValueError, TypeError, KeyError, AttributeError, SettingsError) as error:
            raise LeaseError(
                f"the record of group {group!r} in {store} cannot be read: {error}; stop the "
                "group's processes and remove it: the first one to start writes it again, and "
                "checkpoints and terms stay"
            ) from error
        return cls(facts, number, members, owners, halted)


def member_name(slot: int, term: int) -> str:
    """Return the name of a member that holds a slot under a term."""
    return f"{slot}.{term}"


def slot_and_term(member: str) -> tuple[int, int]:
    """Return the slot and the term of a member's name; raise ValueError."""
    slot, _, term = member.partition(".")
    return int(slot), int(term)


def _check(
    facts: GroupFacts, group: str, members: Mapping[str, Process], owners: Mapping[int, str]
) -> None:
    if facts.group != group:
        raise ValueError(f"it is the record of {facts.group!r}")
    for member in members:
        slot_and_term(member)
    if (owners and len(owners) != facts.partitions) or not set(owners.values()) <= set(members):
        raise ValueError("its owners are not its members, one for each partition")
