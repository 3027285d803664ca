"""A registration whose rows are shared with the other processes of its group.

A member of the group (`client/membership`) says which partitions this process owns. They are read
in one stream after another: when the partitions change, a stream ends at the end of a window, and
the next one begins at the oldest of their checkpoints. One thread makes all callbacks; without
consumers, that is the thread that iterates.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
from collections.abc import AsyncGenerator, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from databus.client.checkpoints.fenced import FencedCheckpointStore, RecordCheckpoints
from databus.client.consumer import Consumer
from databus.client.dispatcher.coroutines import calling_thread
from databus.client.dispatcher.data_window import DataWindow
from databus.client.dispatcher.on_thread import on_thread
from databus.client.dispatcher.partition_listener import ListenerCalls, PartitionListener
from databus.client.group.share import Share
from databus.client.group.streams import Stream, next_stream
from databus.client.group_session import GroupSession, tell_dropped
from databus.client.group_settings import group_name, group_store
from databus.client.machines.position import Position, parse_start, position_of
from databus.client.machines.server_set import Servers, ServerSetChangeMessage, ServerSetMachine
from databus.client.membership.member import Member
from databus.client.membership.membership import Membership, halted_text
from databus.client.membership.owned_partitions import OwnedPartitions
from databus.client.membership.partition_checkpoints import PartitionCheckpoints
from databus.client.registration import ClientContext, Registration
from databus.client.subscription import Subscription
from databus.conf.named_places import Word
from databus.daemon.faults import is_transient
from databus.groups.group_record import GroupFacts, Process
from databus.groups.kept_generation import begin_of, forget_former, read_generation
from databus.groups.names import consumed_scn
from databus.leases.clock import steady_s
from databus.leases.errors import LeaseError, LeaseLostError, LeaseUnavailableError, StaleTermError
from databus.leases.places import open_records
from databus.leases.store import LeaseStore
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import CheckpointError, DatabusError, SettingsError

log = logging.getLogger(__name__)

_SETTLE_S = 0.2  # partitions come one by one: a new stream is not begun for each of them
_SETTLE_MAX_S = 5.0
_RETRY_S = 1.0
_STOP_S = 10.0


def make_registration(
    subscription: Subscription,
    consumers: Sequence[Consumer],
    servers: Servers,
    context: ClientContext,
    listener: PartitionListener | None = None,
) -> Registration:
    """Return a registration, of a group if the settings name one.

    Raises SettingsError, CheckpointError.
    """
    if context.settings.group:
        return GroupRegistration(subscription, consumers, servers, context, listener)
    if listener is not None:
        raise SettingsError("partition_listener: without a `group` there are no partitions")
    return Registration(subscription, consumers, servers, context)


class GroupRegistration(Registration):
    """One registration of a member of a group. Its client starts and stops it."""

    def __init__(
        self,
        subscription: Subscription,
        consumers: Sequence[Consumer],
        servers: Servers,
        context: ClientContext,
        listener: PartitionListener | None = None,
    ) -> None:
        """Ask for nothing yet; a `listener` is told what comes and goes. Raises SettingsError."""
        settings = context.settings
        self._group = group_name(settings, subscription)
        self._process = f"{socket.gethostname()}:{os.getpid()}:{context.client_id}"
        self._servers = ServerSetMachine(servers)
        self._records = open_records(group_store(settings))
        self._facts = GroupFacts(
            self._group, settings.partitions, subscription.sources, settings.partition_by
        )
        self._membership: Membership | None = None
        self._member: Member | None = None
        self._owned = OwnedPartitions(self._restart_soon, self._stop_stream)
        self._checkpoints = PartitionCheckpoints(
            self._fenced(context), self._group, subscription.sources, self._term_of
        )
        self._listening = (
            None if listener is None else ListenerCalls(listener, settings, context.clock)
        )
        self._told: set[int] = set()  # partitions that the consumers know of
        self._repeats_after: int | None = None
        self._is_started = False  # and whether they know that consumption has started
        self._iterating: threading.Thread | None = None
        self._streaming = threading.Lock()
        self._stream: Stream | None = None
        self._store_problem = ""
        self._are_records_open = True
        self._is_ending = False
        self._released = threading.Event()
        self._released.set()
        self._thread = threading.Thread(
            target=self._run, name=f"databus-group-{self._group}", daemon=True
        )
        super().__init__(subscription, consumers, servers, context)

    def _fenced(self, context: ClientContext) -> FencedCheckpointStore:
        if not context.has_given_store:
            return RecordCheckpoints(self._records)
        assert isinstance(context.store, FencedCheckpointStore), "check_group has seen to it"
        return context.store

    def _prepare(self, servers: Servers) -> None:
        # It only shows a state until the first stream.
        at = Position(Checkpoint.flexible())
        self._open(self.subscription, at, servers, self._checkpoints)

    # -- what its client asks for -----------------------------------------------------------------

    def start(self) -> None:
        """Become a member of the group, and begin with what it gives to this process."""
        self._join()
        if self.consumers:
            self._thread.start()

    def hold(self) -> None:
        """Make no callbacks until `release`."""
        self._released.clear()
        super().hold()

    def release(self) -> None:
        """Make callbacks again."""
        super().release()
        self._released.set()
        self._owned.wake()

    def retry(self) -> None:
        """Start reading again if it has stopped."""
        with self._streaming:
            if self._stream is not None:
                super().retry()

    def change_servers(self, message: ServerSetChangeMessage) -> None:
        """Use other servers, for this stream and the next ones."""
        self._servers.handle(message)
        super().change_servers(message)

    def stop(self) -> None:
        """Begin to finish and give back all partitions."""
        self._is_ending = True
        if self._member is not None:
            self._member.leave()
        self._released.set()
        self._owned.wake()

    def join(self, timeout_s: float) -> bool:
        """Wait until all partitions are given back; return False after the timeout.

        Then everything was aborted, and a callback may run still.
        """
        if calling_thread() in (self._thread, self._iterating):
            return True  # it goes on behind this, and gives everything back then
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        is_over = not self._thread.is_alive()
        self._leave(0.0 if self.consumers else timeout_s)
        return is_over

    @property
    def is_this_thread(self) -> bool:
        """Whether the caller is one of its callbacks."""
        return self._thread is calling_thread()

    @property
    def problem(self) -> str:
        """The current problem, or ""."""
        return super().problem or self.blocked

    @property
    def blocked(self) -> str:
        """Why the coordinator lets this process read nothing, or may soon; ""."""
        of_member = "" if self._member is None else self._member.problem
        halted = "" if self._membership is None else self._membership.halted
        return self._store_problem or of_member or (halted and halted_text(self._group, halted))

    @property
    def is_idle(self) -> bool:
        """Whether it owns no partition, so that nothing is to be read."""
        return self._stream is None

    @property
    def group(self) -> str:
        """The group with which it shares the rows."""
        return self._group

    @property
    def partitions(self) -> frozenset[int]:
        """The partitions that this process owns."""
        return self._owned.wanted

    @property
    def partition_count(self) -> int:
        """The number of the group's partitions."""
        membership = self._membership
        return (self._facts if membership is None else membership.facts).partitions

    def windows(self) -> Iterator[DataWindow]:
        """Yield the windows of all streams; raise what ends reading."""
        self._iterating = threading.current_thread()
        yield from self._windows()

    def windows_async(self) -> AsyncGenerator[DataWindow, None]:
        """Yield the same in an asyncio task; another thread waits for leases and the store."""
        self._iterating = threading.current_thread()
        if self._listening is not None:
            self._listening.use_loop(asyncio.get_running_loop())
        return on_thread(self._windows(), self.stop, f"group-{self._group}")

    def _windows(self) -> Generator[DataWindow, None, None]:
        try:
            for _ in self._streams():
                assert self.iterator is not None
                yield from self.iterator.windows()
        finally:
            self.stop()
            self._report_dropped()
            self._end()

    # -- the member -------------------------------------------------------------------------------

    def _join(self) -> None:
        settings = self._context.settings
        membership = Membership(
            *(self._records, LeaseStore(self._records), self._facts),
            Process(self._process, settings.room),
        )
        self._owned.failure = None
        member = Member(
            membership, self._owned, steady_s, settings.group_ttl_s, settings.group_finish_s
        )
        self._membership, self._member, self._owned.member = membership, member, member
        member.start()
        if self._is_ending:
            member.leave()

    def _term_of(self, partition: int) -> int:
        member = self._member
        if member is None:
            raise LeaseLostError(f"partition {partition}", 0, "the process is no member")
        return member.term(partition)

    def _leave(self, timeout_s: float) -> None:
        has_left = self._member is None or self._member.stop(timeout_s)
        if not self._are_records_open:
            return
        self._are_records_open = False
        self._records.close()
        if not has_left and self._membership is not None and self._membership.slot is not None:
            log.warning(
                "%s: not all partitions were given back in time: others wait until the place of "
                "this process in the group has run out",
                self._group,
            )

    def _end(self) -> None:
        """Give everything back: nothing is read any more."""
        self.stop()
        self._owned.end()
        self._leave(_STOP_S)

    # -- the thread that consumes -----------------------------------------------------------------

    def _run(self) -> None:
        try:
            for _ in self._streams():
                assert self.dispatcher is not None
                self.dispatcher.run()
            if self._is_started and self.dispatcher is not None:
                self.dispatcher.log(self.dispatcher.dispatch.stop())
        except BaseException as error:
            # A thread that ends silently would look like one that has nothing to do.
            wrapped = DatabusError(f"{self._group}: reading has ended: {error!r}")
            wrapped.__cause__ = error
            self._context.on_error(self, wrapped)
        finally:
            self._end()

    def _streams(self) -> Iterator[None]:
        """Open one stream after another, until this process owns nothing and is to end."""
        while True:
            version = self._settled_version()
            self._report_dropped()
            if self._is_ending and self._owned.are_none:
                return
            if self._owned.failure is not None:
                self._suspend(_as_databus_error(self._owned.failure))
                if not self._is_ending:
                    self._join()
                continue
            try:
                found = self._next_stream()
                self._store_problem = ""
            except (CheckpointError, LeaseError) as error:
                self._wait_or_suspend(error, version)
                continue
            if found is None:
                # What is owned but not held at this moment may be held again without a change.
                self._owned.wait(version, _RETRY_S if self._owned.wanted else None)
            elif self._open_stream(*found):
                try:
                    yield
                finally:
                    self._close_stream()

    def _settled_version(self) -> int:
        """Wait until no more partitions come; return the version of what is owned."""
        until_s = steady_s() + _SETTLE_MAX_S
        while True:
            version = self._owned.version
            if self._owned.wanted <= self._checkpoints.newest.keys() or self._owned.has_dropped:
                return version
            self._owned.wait(version, _SETTLE_S)
            if version == self._owned.version or steady_s() > until_s:
                return self._owned.version

    def _next_stream(self) -> tuple[Stream, Share] | None:
        """Begin what is new; return the stream to read, None if nothing is held."""
        assert self._membership is not None
        facts, wanted = self._membership.facts, self._owned.wanted
        if not wanted:
            return None
        newest = self._checkpoints.newest
        kept = read_generation(self._records, self._group, facts.generation)
        for partition in sorted(wanted - newest.keys()):
            with suppress(LeaseLostError, StaleTermError):  # the member notices it, too
                begin = begin_of(kept, partition)
                self._checkpoints.begin(partition, facts.generation, begin)
        held = {one: newest[one] for one in wanted & newest.keys() if self._is_held(one)}
        if not held:
            return None
        stream = next_stream(held)
        share = Share.of(
            facts.partitions,
            self._checkpoints.read(stream.partitions),
            facts.partition_by,
            self.subscription.filters,
            () if kept is None else kept.generation.former,
        )
        return stream, share

    def _open_stream(self, stream: Stream, share: Share) -> bool:
        """Start a stream; return False if one of its partitions is to be dropped already."""
        newest = {one: self._checkpoints.newest[one] for one in stream.partitions}
        session = GroupSession(
            share,
            self._owned,
            {one: consumed_scn(at) for one, at in newest.items()},
            self._told,
            partial(self._term_of, min(newest)),
            self._forget_former,
            self._stop_stream if stream.is_partial else (lambda: None),
        )
        with self._streaming:
            if self._owned.has_dropped:
                return False
            subscription = replace(self.subscription, share=share)
            at = self._position(min(newest.values(), key=consumed_scn))
            self._open(subscription, at, self._servers.servers, self._checkpoints, session)
            self._stream = stream
        session.telling = self.dispatcher or self._listening
        if self.dispatcher is not None:
            session.is_first = not self._is_started
            session.repeats_after, self._repeats_after = self._repeats_after, None
            self._is_started = True
            if not self._released.is_set():
                self.dispatcher.hold()
        self._pull()
        if self._owned.wanted - stream.partitions:
            self._restart_soon()  # they have come while this stream was prepared
        return True

    def _close_stream(self) -> None:
        self._stop_stream()
        with self._streaming:
            stream, self._stream = self._stream, None
        if stream is None or self.dispatcher is None:
            return
        # A consumer that left checkpoints out gets those windows again.
        newest = (self._checkpoints.newest.get(one) for one in stream.partitions)
        kept_scn = max(map(consumed_scn, newest))
        if self.dispatcher.scn > kept_scn:
            self._repeats_after = kept_scn

    def _stop_stream(self) -> None:
        """End the stream at the end of the current window. Any thread; it does not wait."""
        with self._streaming:
            if self._stream is not None:
                super().stop()

    def _restart_soon(self) -> None:
        def begin_waiting() -> None:
            asyncio.get_running_loop().call_later(_SETTLE_S, self._restart)

        self._context.loop.call(begin_waiting)

    def _restart(self) -> None:
        """End a stream that lacks partitions; a partial one ends by itself."""
        stream = self._stream
        if stream is not None and not stream.is_partial and self._owned.wanted - stream.partitions:
            self._stop_stream()

    def _position(self, checkpoint: Checkpoint | None) -> Position:
        if checkpoint is not None:
            return position_of(checkpoint)
        start = parse_start(self._context.settings.start)
        # By its SCN: so the first window, which has no rows, is a checkpoint of all partitions.
        return replace(start, is_latest=False, place=Word.LATEST) if start.is_latest else start

    def _is_held(self, partition: int) -> bool:
        try:
            self._term_of(partition)
        except LeaseLostError:
            return False
        return True

    def _report_dropped(self) -> None:
        if not self._owned.has_dropped:
            return
        dropped = self._owned.settled_dropped()
        if (telling := self.dispatcher or self._listening) is not None:
            tell_dropped(telling, dropped.finishing, self._told)
        if dropped.aborted:
            log.warning(
                "%s: partitions %s were lost: this process was stopped, cut off from the "
                "coordinator, or too slow to finish them; another process goes on with them",
                self._group,
                sorted(dropped.aborted),
            )
        for partition in dropped.finishing | dropped.aborted:
            self._checkpoints.drop(partition)
            self._told.discard(partition)
        self._owned.report(dropped)

    def _forget_former(self) -> None:
        """Forget what former partitions had; raise LeaseLostError if a partition is lost first."""
        assert self._membership is not None
        while True:
            try:
                forget_former(self._records, self._group, self._membership.facts.generation)
                return
            except LeaseUnavailableError as error:
                self._store_problem = str(error)
                version = self._owned.version
                if self._owned.has_dropped or self._is_ending:
                    raise LeaseLostError(self._group, 0, str(error)) from error
                self._owned.wait(version, _RETRY_S)

    def _wait_or_suspend(self, error: DatabusError, version: int) -> None:
        if not is_transient(error):
            self._suspend(error)
            return
        if not self._store_problem:
            log.warning("%s: %s; trying again", self._group, error)
        self._store_problem = str(error)
        self._owned.wait(version, _RETRY_S)

    def _suspend(self, error: DatabusError) -> None:
        """Report an error and wait for `release` or `stop`; without consumers, raise it."""
        if self.dispatcher is None:
            raise error
        self._released.clear()
        self.dispatcher.log(self.dispatcher.dispatch.report(error))
        self._context.on_error(self, error)
        self._released.wait()


def _as_databus_error(error: Exception) -> DatabusError:
    if isinstance(error, DatabusError):
        return error
    wrapped = DatabusError(f"a defect in a member of a group: {error!r}")
    wrapped.__cause__ = error
    return wrapped
