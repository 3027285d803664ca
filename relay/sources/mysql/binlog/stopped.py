"""What ends the reading of a log: something in it that must not be passed over."""

from __future__ import annotations


class AssemblyStopped(Exception):  # noqa: N818 - becomes a SourceStoppedError with its place
    """An event that capture must not pass; `position` and `scn` say where it is.

    `evidence` is a digest of what was read there, `way_on` what lets capture pass it.
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
