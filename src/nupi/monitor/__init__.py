"""See what the multipliers do: record every `ascend`, say what is wrong and what to change, write a report."""

from nupi.monitor.diagnose import diagnose, judge
from nupi.monitor.disk import read
from nupi.monitor.finding import KINDS, ConstraintWarning, Finding
from nupi.monitor.monitor import Monitor
from nupi.monitor.record import Record
from nupi.monitor.replay import Played, replay

__all__ = [
    "KINDS",
    "ConstraintWarning",
    "Finding",
    "Monitor",
    "Played",
    "Record",
    "diagnose",
    "judge",
    "read",
    "replay",
]
