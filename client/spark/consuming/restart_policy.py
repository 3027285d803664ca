"""Decide from the class of an error whether to restart a failed query.

Only the traceback's text of an error in one of Spark's processes reaches the driver.
The class is read from the line that names it, never guessed from the message. After
a schema change that a restart takes in, the query is restarted at once. It is
restarted after a pause when servers are unavailable or do not know a schema yet, when
they no longer have the rows of a batch (the next start reads a snapshot instead), and
after any failure of Spark itself (a lost worker, a full disk). The number of restarts
without a batch in between is limited. Any other error of this package is final, and so
are a value that the target's database refuses, a request that Spark cannot analyse, and
the end of Spark's own process.

    try:
        query.awaitTermination()
    except JOB_FAILURES as error:
        wait_s = restarts.wait_s(error, "shop.orders", scn)
"""

from __future__ import annotations

import logging
import re
import traceback
from pathlib import Path
from typing import NamedTuple

import py4j
import pyspark
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import AnalysisException, IllegalArgumentException, PySparkException

from databus.client.machines.backoff import BackOff
from databus.schemas import errors
from databus.schemas.errors import (
    BootstrapTooOldError,
    BootstrapTooYoungError,
    ConsumerError,
    DatabusError,
    NoAnswerError,
    ReadAgainError,
    RestartNeededError,
    SchemaNotFoundError,
)

log = logging.getLogger(__name__)

# The last line of a Python traceback; such an error is final unless its class says otherwise.
_RAISED = re.compile(r"(databus\.[\w.]+\.\w+Error|ImportError|sqlalchemy\.exc\.DataError): (.+)")
_PASSING = (
    *(BootstrapTooOldError, BootstrapTooYoungError, NoAnswerError, ReadAgainError),
    SchemaNotFoundError,  # a server does not list a version yet of which another one has rows
)
# What says nothing to a reader, before the reason in Spark's text.
_PREAMBLE = re.compile(
    r"(?:\[STREAM_FAILED\] )?Query \[id = [^\]]*\] terminated with exception: "
    r"|Job aborted due to stage failure: .*most recent failure: Lost task [^(]*\([^)]*\) ?"
    r"|\([^()]*executor [^()]*\): "
)
_CALLING = ("An error occurred while calling", "SQLSTATE")
_TRACEBACK = "Traceback (most recent call last):"
# Modules whose errors tell that a target is out of reach, or that another writer was faster.
_TARGETS_LIBRARIES = (
    *("deltalake", "pyiceberg", "pymysql", "psycopg"),
    "_internal",  # the compiled module of deltalake, as its own errors name it
)
_OF_TARGETS = ("sqlalchemy", *_TARGETS_LIBRARIES)
_STORAGE = re.compile(
    r"os error \d+|os \{ code: \d+|object ?store|Generic (?!DataFusion)\w+ error", re.IGNORECASE
)
# But for these of their errors, which come again each time.
_FINAL = (
    *("DataError", "IntegrityError", "ProgrammingError", "NotSupportedError"),
    *("SchemaMismatchError", "DeltaProtocolError"),
)
_SPARKS = tuple(str(Path(str(package.__file__)).parent) for package in (py4j, pyspark))

# What a call of Spark raises when a query, a worker or a connection fails. A killed process is
# reported by whatever was read from it just then, so `read_failure` looks at the traceback too.
# Those of Spark's own classes; of a query's tables none has such an error of its own.
SPARK_ERRORS = (PySparkException, Py4JError)
SPARK_FAILURES = (*SPARK_ERRORS, EOFError, OSError, IndexError)
JOB_FAILURES = (*SPARK_FAILURES, RestartNeededError, *_PASSING)
# What Spark cannot analyse now it cannot analyse later.
_WRONG_REQUESTS = (AnalysisException, IllegalArgumentException)
_TWO_QUERIES = "CONCURRENT_STREAM_LOG_UPDATE"
_OTHER_QUERY = (
    "another query uses this checkpoint folder at the same time, and has planned the batch that "
    "this one was planning: let one of the two run, or give each a folder and a target of its own. "
    "If no other runs, the folder lacks the newest file of offsets, and still has that of commits: "
    "remove the latter, too"
)
_SPARK_ENDED = (
    "Spark's own process (the JVM of the driver) has ended, by a kill or for lack of memory: start "
    "again; the job continues from its checkpoint"
)


class Failure(NamedTuple):
    """The reason why a query ended: the error's class, if it is this project's, and its text.

    `is_final`: a restart cannot help.
    """

    kind: type[DatabusError] | None
    problem: str
    is_final: bool

    def is_a(self, kind: type[DatabusError]) -> bool:
        """Return whether the error's class is `kind` or derived from it."""
        return self.kind is not None and issubclass(self.kind, kind)


def read_failure(failed: str | BaseException) -> Failure:
    """Return the failure that Spark's error, or its text, describes.

    A traceback prints an error after the one that caused it, so the last one counts.
    Raises the error itself if neither Spark, nor a target's library, nor this package raised it:
    that is a defect.
    """
    if isinstance(failed, DatabusError):
        return _ours(type(failed), str(failed))
    text = failed if isinstance(failed, str) else text_of(failed)
    if _TWO_QUERIES in text:
        return Failure(None, _OTHER_QUERY, is_final=True)
    raised = _RAISED.findall(text)
    if raised:
        name, problem = raised[-1]
        known = name.startswith("databus.")
        kind = getattr(errors, name.rpartition(".")[2], None) if known else None
        return _ours(kind, problem.strip())
    if isinstance(failed, str):
        return Failure(None, _reason(text), is_final=False)
    if isinstance(failed, Exception) and _library_of(failed) in _OF_TARGETS:
        return Failure(None, text.partition("\n")[0], is_final=not passes(failed))
    if not _is_sparks(failed):
        raise failed
    if isinstance(failed, Py4JError | OSError) and not has_spark():
        return Failure(None, _SPARK_ENDED, is_final=True)
    return Failure(None, _reason(text), is_final=_is_wrong_request(failed))


def text_of(error: BaseException) -> str:
    """Return an error's text, of an object of the JVM too if that has ended since."""
    try:
        text = str(error)
    except Exception:
        # Py4JJavaError asks the JVM for its text.
        text = " ".join(str(part) for part in error.args[:1])
    return text or type(error).__name__


def log_failure(what: str, failed: str | BaseException) -> Failure:
    """Log a failure's problem and Spark's whole text, at level INFO; return the failure.

    What passes, such as an outage, comes again with each try, and its line says all: level DEBUG.
    """
    failure = read_failure(failed)
    text = failed if isinstance(failed, str) else text_of(failed)
    passes_by_itself = failure.kind is not None and not failure.is_final
    level = logging.DEBUG if passes_by_itself else logging.INFO
    # The readable line comes first.
    log.log(level, "%s: %s\n%s", what, failure.problem, text)
    return failure


def _ours(kind: type[DatabusError] | None, problem: str) -> Failure:
    is_passing = kind is not None and issubclass(kind, (RestartNeededError, *_PASSING))
    return Failure(kind, problem, is_final=not is_passing)


def _is_wrong_request(error: BaseException) -> bool:
    # Spark wraps an error of the source's Python process in an AnalysisException, too.
    is_of_python = "PYTHON" in text_of(error).partition("]")[0]
    return isinstance(error, _WRONG_REQUESTS) and not is_of_python


def _is_sparks(error: BaseException) -> bool:
    """Return whether an error comes out of Spark's code or out of that of its gateway."""
    if isinstance(error, PySparkException | Py4JError):
        return True
    files = (frame.filename for frame in traceback.extract_tb(error.__traceback__))
    return any(file.startswith(_SPARKS) for file in files)


def has_spark() -> bool:
    """Return whether this process's Spark answers; with Spark Connect it has none to ask."""
    gateway = pyspark.SparkContext._gateway
    if gateway is None:
        return True
    try:
        gateway.jvm.java.lang.System.nanoTime()
    except Py4JJavaError:
        return True
    except Exception:
        return False
    return True


def _reason(text: str) -> str:
    """Return the line of Spark's text that names the reason."""
    _, is_python, rest = text.rpartition(_TRACEBACK)
    lines = (rest if is_python else text).splitlines()
    # The frames of a traceback are indented.
    said = (line.strip(": ") for line in lines if not line.startswith(("  ", *_CALLING)))
    return _PREAMBLE.sub("", next(filter(None, said), "no text"))


def passes(error: Exception) -> bool:
    """Return whether it may help to write to a target again after an error."""
    if isinstance(error, (DatabusError, *SPARK_ERRORS)):
        return not read_failure(error).is_final
    library = _library_of(error)
    if library == "sqlalchemy":
        from databus.client.sql.refusals import says_away

        return says_away(error)
    if library in _TARGETS_LIBRARIES:
        name = type(error).__name__
        # delta-rs has one class for a storage that fails and for what it cannot compute.
        return bool(_STORAGE.search(str(error))) if name == "DeltaError" else name not in _FINAL
    return isinstance(error, OSError)


def _library_of(error: BaseException) -> str:
    return type(error).__module__.partition(".")[0]


class Restarts:
    """Counts the failures of one job; allows `most` restarts in a row."""

    def __init__(self, most: int, back_off: BackOff) -> None:
        self._most = most
        self._back_off = back_off
        self._failures = 0

    def progressed(self) -> None:
        """Record that a batch was applied."""
        self._failures = 0
        self._back_off.reset()

    def wait_s(self, failed: str | BaseException, source: str, scn: int) -> float:
        """Return the pause before a restart; raises ConsumerError if there must be none.

        `failed` is Spark's error or its text. `scn` is the job's position, for the error.
        The log gets one line, and Spark's whole text at a lower level.
        """
        failure = log_failure(f"{source} at scn {scn}" if scn > 0 else source, failed)
        self._failures += 1
        if failure.is_final:
            raise ConsumerError(scn, f"{source}: {failure.problem}")
        if self._failures > self._most:
            raise ConsumerError(
                scn, f"{source}, {self._failures} times in a row: {failure.problem}"
            )
        wait_s = 0.0 if failure.is_a(RestartNeededError) else self._back_off.next_s()
        log.warning("%s: the query is restarted in %.1f s: %s", source, wait_s, failure.problem)
        return wait_s
