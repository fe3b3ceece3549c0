"""Real servers for try-outs and tests: a PostgreSQL and a Redis of one's own, as plain child processes.

The binaries come from the optional packages of the `tryout` extra or from PATH. Everything listens on loopback at a
free port, belongs to the process that started it, and is stopped by pid; on Linux it also dies with its starter.
Nothing here is meant for production; in the package, only what helps to test makes use of it.
"""
