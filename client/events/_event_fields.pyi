from databus.client.events.event_fields import (
    PythonEventFields as EventFields,
    make_runs_in_python,
    track_kept_in_python,
)

__all__ = ["EventFields", "make_runs", "track_kept"]

make_runs = make_runs_in_python
track_kept = track_kept_in_python
