"""What an error of PostgreSQL means to the operation that meets it. Knows no session, and raises nothing."""

from __future__ import annotations

from typing import Final

import psycopg
from psycopg import errors

_TRANSACTION_TIMEOUT: Final[type[psycopg.Error]] = getattr(errors, "TransactionTimeout", psycopg.InternalError)
"""It came with PostgreSQL 17. The oldest psycopg knows it by its kind alone: there the others of that kind are tried
once more as well.
"""

MISSING: Final = (errors.UndefinedTable, errors.UndefinedColumn, errors.InvalidSchemaName)
"""The schema is not there, or too old."""
LOST_PLAN: Final = (errors.InvalidSqlStatementName, errors.DuplicatePreparedStatement, errors.FeatureNotSupported)
"""What the session has prepared fits the server no more, or belongs to another session of a pooler's."""
OF_NO_USE: Final = (
    errors.AdminShutdown,
    errors.CrashShutdown,
    errors.IdleSessionTimeout,
    errors.IdleInTransactionSessionTimeout,
    _TRANSACTION_TIMEOUT,
    errors.ReadOnlySqlTransaction,
)
"""The server says so before it closes the connection, which may not look broken yet; or it is the primary no more, and
keeps the connection open. A new session may lead to the one that is.
"""
LOST_RACE: Final = (errors.SerializationFailure, errors.DeadlockDetected, errors.LockNotAvailable)
"""Another transaction was in the way."""
SOONER_IN_COMPANY: Final = (errors.QueryCanceled, _TRANSACTION_TIMEOUT, *LOST_RACE)
"""What befalls a statement of many rows sooner than one of a single row, such as a time limit of the user's own. It is
found as the cause of `StoreUnavailable`.
"""
_OUT_OF_NUMBERS: Final = frozenset({"GetNewTransactionId", "GetNewMultiXactId"})
"""Where a server gives out the numbers of its transactions."""
_FULL_OF_NOTIFICATIONS: Final = "PreCommit_Notify"
"""Where a server takes in the notifications of a commit."""


def refuses_a_value(error: psycopg.Error) -> bool:
    """Whether the server can never hold what it was given. It says by the same code, that of a limit, also what is no
    fault of a value and passes: that it has run short of transaction ids, until it has been vacuumed, and that its
    notifications are full.
    """
    if isinstance(error, errors.ProgramLimitExceeded):
        return not is_full_of_notifications(error) and error.diag.source_function not in _OUT_OF_NUMBERS
    return isinstance(error, psycopg.DataError)


def is_full_of_notifications(error: psycopg.Error) -> bool:
    """Whether the server refuses a commit that notifies, while its one queue of notifications is full: some session, in
    whatever database, listens and does not end its transaction.
    """
    return isinstance(error, errors.ProgramLimitExceeded) and error.diag.source_function == _FULL_OF_NOTIFICATIONS
