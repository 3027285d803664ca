from databus.client.dispatcher.calls import PythonCaller as Caller

__all__ = ["Caller"]
