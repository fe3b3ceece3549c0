"""docket_celery with 32 runs at a time in each worker: the gevent pool, where commits that meet share a statement."""

from __future__ import annotations

from typing import ClassVar

from benchmarks.peers.engine import main
from benchmarks.peers.engines.docket import DocketEngine


class DocketOnGevent(DocketEngine):
    """The same in all else."""

    name = "docket_gevent"
    pool: ClassVar[tuple[str, ...]] = ("-P", "gevent", "-c", "32")


if __name__ == "__main__":
    main(DocketOnGevent)
