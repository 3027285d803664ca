"""databus: every committed change of a database, in order, at least once.

This is the import root. Packages that the project's owner keeps at the root of the
checkout (`relay/` and so on) are links here; `setup.py` installs them as `databus.relay`.
"""

__version__ = "0.1.0"
