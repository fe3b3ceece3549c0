"""docket_celery with one broker message for each run and 32 runs at a time in each worker, set as `docs/operations.md`
says for a worker of its own on gevent and Redis.
"""

from __future__ import annotations

from typing import Any, ClassVar

from benchmarks.peers.engine import main
from benchmarks.peers.engines.docket_broker import DocketByMessage


class DocketByMessageOnGevent(DocketByMessage):
    """The same in all else."""

    name = "docket_broker_gevent"
    pool: ClassVar[tuple[str, ...]] = ("-P", "gevent", "-c", "32", "--prefetch-multiplier", "2")
    transport: ClassVar[dict[str, Any]] = {"ack_emulation": False}


if __name__ == "__main__":
    main(DocketByMessageOnGevent)
