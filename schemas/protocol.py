"""The names of the Databus protocol: headers, in one place.

Those that begin with `x-databus-` are this project's own; all others are as LinkedIn's servers
and clients spell them.
"""

from __future__ import annotations

from typing import Final

# An answer that is an error (`error_headers.py` writes and reads them).
ERROR: Final = "x-dbus-error"
ERROR_MESSAGE: Final = "x-dbus-error-message"
ERROR_CAUSE: Final = "x-dbus-error-cause"
ERROR_CAUSE_MESSAGE: Final = "x-dbus-error-cause-message"
OLDEST_SCN: Final = "x-databus-oldest-scn"  # with ScnNotFoundException, where it is known
ADVICE: Final = "x-databus-advice"  # with ScnNotFoundException, where there is more to say
