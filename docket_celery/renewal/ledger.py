"""What the processes of a pool hold, in memory that all of them share: one place per process.

Each process writes its own place; one reader looks at them all, and writes back only when it has renewed a claim.
Nothing is locked, so a place may be seen half written, or change hands meanwhile. That is harmless: what follows from
an entry is only ever a renewal, and a renewal is fenced by the token. A torn entry renews nothing, or a claim that a
living process held a moment ago.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from docket_celery.renewal.held import Held

_TIMES: Final = 2 * struct.calcsize("d")
_ENTRY: Final = struct.Struct("=qq256p256p")
"""Process id and birth, run id and token. No id and no token is longer than 255 bytes."""
_NOBODY: Final = struct.Struct("=q")
_PLACE: Final = _TIMES + _ENTRY.size


@dataclass(frozen=True, slots=True)
class Holder:
    """One process for good: its number, and when it was born, since numbers come again."""

    pid: int
    born: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One claim as its holder shows it: its times are the holder's own, on a clock that all processes share."""

    holder: Holder
    held: Held


class Ledger:
    """The places, in a writable buffer of `size(places)` zero bytes."""

    def __init__(self, buffer: bytearray | memoryview) -> None:
        self._bytes = memoryview(buffer)
        self.places = len(self._bytes) // _PLACE

    @staticmethod
    def size(places: int) -> int:
        """Bytes that so many places take."""
        return places * _PLACE

    def write(self, place: int, holder: Holder, held: Held) -> None:
        """Shows a claim. What becomes of its times from now on is seen at once."""
        held.keep_times_in(self._times(place))
        ids = held.run_id.encode(), held.token.encode()
        _ENTRY.pack_into(self._bytes, place * _PLACE + _TIMES, holder.pid, holder.born, *ids)

    def clear(self, place: int, held: Held) -> None:
        """Shows the claim no longer. What becomes of its times is its own affair again."""
        _NOBODY.pack_into(self._bytes, place * _PLACE + _TIMES, 0)
        held.keep_times_in(None)

    def entries(self) -> list[Entry]:
        """What is shown at this moment."""
        return [entry for place in range(self.places) if (entry := self._read(place)) is not None]

    def _read(self, place: int) -> Entry | None:
        pid, born, run_id, token = _ENTRY.unpack_from(self._bytes, place * _PLACE + _TIMES)
        if not pid or b"\0" in run_id + token:  # Half written: the database could not even compare it.
            return None
        ids = run_id.decode(errors="replace"), token.decode(errors="replace")
        return Entry(Holder(pid, born), Held.seen_in(self._times(place), *ids))

    def _times(self, place: int) -> memoryview[float]:
        start = place * _PLACE
        return self._bytes[start : start + _TIMES].cast("d")
