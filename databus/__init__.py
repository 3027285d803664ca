"""databus: every committed change of a database, in order, at least once.

This is the import root. The packages themselves lie in the directories beside
this one (`relay/` is `databus.relay`, and so on): `setup.py` maps them for an
installed copy, and the lines below map them for a checkout that nobody
installed, so that `python -m pytest` works right after `git clone`.
"""

from pathlib import Path
from pkgutil import extend_path

__version__ = "0.1.0"

__path__ = extend_path(__path__, __name__)

_checkout = Path(__file__).resolve().parent.parent
if (_checkout / "setup.py").is_file():
    __path__.append(str(_checkout))
