from databus.client.events.event_fields import PythonEventFields as EventFields, make_runs_in_python

__all__ = ["EventFields", "make_runs"]

make_runs = make_runs_in_python
