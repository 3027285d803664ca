"""The names of the Databus protocol: headers and query parameters, each in this place alone.

Names are as LinkedIn's servers and clients spell them, but for those marked [+], which are this
project's own.
"""

from __future__ import annotations

from typing import Final


class Header:
    """The names of HTTP headers. Clients compare them in lower case."""

    # Of a request.
    CLIENT_ID: Final = "x-databus-client"  # [+] whose request it is: its reports have the same id

    # Of an answer that is an error (`error_headers.py`).
    ERROR: Final = "x-dbus-error"
    ERROR_MESSAGE: Final = "x-dbus-error-message"
    ERROR_CAUSE: Final = "x-dbus-error-cause"
    ERROR_CAUSE_MESSAGE: Final = "x-dbus-error-cause-message"
    # [+] the message once more, percent-encoded, if it has characters that no header can have
    ERROR_TEXT: Final = "x-databus-error-text"
    OLDEST_SCN: Final = "x-databus-oldest-scn"  # [+] with ScnNotFoundException, where known
    ADVICE: Final = "x-databus-advice"  # [+] with ScnNotFoundException, where there is any
    STOPPED: Final = (
        "x-databus-stopped"  # [+] with TableStoppedException: the source, percent-encoded
    )

    # Of `/register`.
    PROTOCOL_VERSION: Final = "x-dbus-protocol-version"

    # Of `/stream` and `/measure`.
    RESUME: Final = "x-databus-resume"  # [+] where the next request goes on
    LOG_WINDOW: Final = "x-databus-log-window"  # [+] the newest window with rows of any source
    AHEAD: Final = "x-databus-ahead"  # [+] the checkpoint is newer than all that the relay has
    PENDING_EVENT_BYTES: Final = "x-dbus-pending-event-size"  # of `/bootstrap`, too

    # Of the bootstrap server.
    BOOTSTRAP_SERVER: Final = "X-DBUS2-BS-HOSTPORT"  # of `/startSCN`: who holds the session
    STORE_ID: Final = "x-databus-store"  # [+] of `/startSCN`: the store whose row ids follow
    MARK: Final = "x-databus-mark"  # [+] the newest window with rows; of an empty `/stream`, too
    PHASE_COMPLETED: Final = "PhaseCompleted"  # of `/bootstrap`: TRUE on a phase's last page


class Parameter:
    """The names of query parameters."""

    # What is read.
    SOURCES: Final = "sources"
    SOURCE: Final = "source"
    SUBSCRIPTIONS: Final = "subs"
    FILTERS: Final = "filters"  # of a relay
    FILTER: Final = "filter"  # of a bootstrap server

    # From where on, and up to where.
    CHECKPOINT: Final = "checkPoint"
    CHECKPOINT_MULT: Final = "checkPointMult"
    FROM_LATEST: Final = "streamFromLatestScn"
    SINCE_MS: Final = "since"  # [+]
    UNTIL_SCN: Final = "untilScn"  # [+]
    MARK: Final = "mark"  # [+] of `/measure`: whether the answer has a mark
    FROM: Final = "from"  # [+] of `/segments`
    TO: Final = "to"  # [+] of `/segments`
    AFTER_ROW: Final = "afterRow"  # [+]
    UNTIL_ROW: Final = "untilRow"  # [+]

    # How much.
    SIZE: Final = "size"  # bytes of an answer to `/stream`
    BATCH_SIZE: Final = "batchSize"  # bytes of an answer to `/bootstrap`
    ROWS: Final = "rows"  # [+] of `/measure`
    BYTES: Final = "bytes"  # [+] of `/measure`

    # In which form, and when.
    OUTPUT: Final = "output"
    EVENT_VERSION: Final = "maxev"
    DDL: Final = "ddl"  # [+]
    TRUNCATE: Final = "truncate"  # [+] of a relay and of a bootstrap server
    WAIT_MS: Final = "wait"  # [+]
    FOLLOW: Final = "follow"  # [+] the answer goes on until `wait` is over
    COMPRESS: Final = "compress"  # [+] with zstd, also what does not lie on disk
    PACKS: Final = "packs"  # [+] of `/bootstrap`: rows may come packed as columns
    VERSION: Final = "v"  # of `/sources`; nobody reads it
    PROTOCOL_VERSION: Final = "protocolVersion"
