"""The exception for events that capture must not skip."""

from __future__ import annotations


class AssemblyStopped(Exception):  # noqa: N818 - becomes a SourceStoppedError with its place
    """Capture must not skip this event; `position` and `scn` locate it.

    `evidence` is a digest of its bytes; `remedy` tells how to make capture skip it. `tables` are
    those that it concerns, if it concerns no other.
    """

    def __init__(
        self,
        problem: str,
        position: str,
        scn: int,
        evidence: bytes = b"",
        remedy: str = "",
        tables: tuple[str, ...] = (),
    ) -> None:
        super().__init__(problem)
        self.problem = problem
        self.position = position
        self.scn = scn
        self.evidence = evidence
        self.tables = tables
        self.remedy = remedy or f"to pass this place: acknowledged_scns = [{scn}]"
