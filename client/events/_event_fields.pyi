from databus.client.events.event_fields import (
    PythonEventFields as EventFields,
    PythonLentEvents as LentEvents,
    make_rows_in_python,
    make_runs_in_python,
    track_kept_in_python,
)

__all__ = ["EventFields", "LentEvents", "make_rows", "make_runs", "track_kept"]

make_rows = make_rows_in_python
make_runs = make_runs_in_python
track_kept = track_kept_in_python
