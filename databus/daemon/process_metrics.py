"""Metrics of the process itself: memory, CPU, files, Python."""

from __future__ import annotations

from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
)


def add_process_metrics(metrics: CollectorRegistry) -> None:
    """Add the metrics of this process to a registry; call it once for each registry."""
    ProcessCollector(registry=metrics)
    PlatformCollector(registry=metrics)
    GCCollector(registry=metrics)
