"""docket_celery with one broker message for each run: `docket_refill = "broker"`."""

from __future__ import annotations

from benchmarks.peers.engine import main
from benchmarks.peers.engines.docket import DocketEngine


class DocketByMessage(DocketEngine):
    """The same in all else."""

    name = "docket_broker"
    refill = "broker"


if __name__ == "__main__":
    main(DocketByMessage)
