"""The exception for events that capture must not skip."""

from __future__ import annotations


class AssemblyStopped(Exception):  # noqa: N818 - becomes a SourceStoppedError with its place
    """Capture must not skip this event; `position` and `scn` locate it.

    `evidence` is a digest of its bytes; `way_on` tells how to make capture skip it.
    """

    def __init__(
        self, problem: str, position: str, scn: int, evidence: bytes = b"", way_on: str = ""
    ) -> None:
        super().__init__(problem)
        self.problem = problem
        self.position = position
        self.scn = scn
        self.evidence = evidence
        self.way_on = way_on or f"to pass this place: acknowledged_scns = [{scn}]"
