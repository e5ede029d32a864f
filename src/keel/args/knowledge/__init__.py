"""What is known of flags beyond this engine's table: SGLang's names, what excludes or needs what.

Data and pure functions; `slipway deploy check` makes a rule of every constraint and pairing.
"""

from __future__ import annotations

from keel.args.knowledge.launch import Complaint, Launch, read_launch
from keel.args.knowledge.pair import PAIRINGS, Pairing
from keel.args.knowledge.single import CONSTRAINTS, IDLE_CHECK, Constraint

__all__ = [
    "CONSTRAINTS",
    "IDLE_CHECK",
    "PAIRINGS",
    "Complaint",
    "Constraint",
    "Launch",
    "Pairing",
    "read_launch",
]
