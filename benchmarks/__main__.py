"""Runs every benchmark that gives figures to keep, one after the other: all but `starts`, which only prints.

python -m benchmarks [--quick] [--json FILE]
"""

from __future__ import annotations

from benchmarks import claims, fairness, memory, throughput, wal
from benchmarks.command import parser
from benchmarks.machine import write


def main() -> None:
    """Measures, prints the tables, and writes one JSON file if asked to."""
    arguments = parser(__doc__)
    arguments.add_argument("--quick", action="store_true", help="one short round of each, in about a minute")
    options = arguments.parse_args()
    rows = throughput.measure(*((1, 200) if options.quick else (3, 2_000)))
    throughput.report(rows)
    written = wal.measure(*((1, 10) if options.quick else (3, 50)))
    wal.report(written)
    claimed = claims.measure(*((claims.QUICK, 1.0) if options.quick else (claims.FULL, 3.0)))
    claims.report(claimed)
    grown = memory.measure(*((50, 200) if options.quick else (memory.WARM_UP, memory.RUNS)))
    memory.report(grown)
    waited = fairness.measure(100 if options.quick else fairness.RUNS)
    fairness.report(waited)
    if options.json is not None:
        write(options.json, [*rows, *written, *claimed, *grown, *waited])


if __name__ == "__main__":
    main()
