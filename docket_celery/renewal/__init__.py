"""Keeps claims alive while their vehicles work, and never for longer.

Every process renews its own claims from a thread (`Renewal`). Code that holds the interpreter starves that thread, so
a process may also let another one see what it holds (`Ledger`), which renews in its place when it is late (`StandIn`).
Renewal never decides anything; the fence does.
"""

from __future__ import annotations

from docket_celery.renewal.held import GRACE, Held, NoRenewal, Renewer, Witness, holding
from docket_celery.renewal.ledger import Entry, Holder, Ledger
from docket_celery.renewal.own import Renewal
from docket_celery.renewal.stand_in import StandIn

__all__ = [
    "GRACE",
    "Entry",
    "Held",
    "Holder",
    "Ledger",
    "NoRenewal",
    "Renewal",
    "Renewer",
    "StandIn",
    "Witness",
    "holding",
]
