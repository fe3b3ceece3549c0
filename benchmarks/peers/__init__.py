"""Other engines beside this one, on the same servers, in the same run: `python -m benchmarks.peers`.

Everything under `engines` runs in a process of its own and is told what to do on its command line. What the peers need
is in `requirements.txt`, pinned, and lives in a virtual environment of theirs; nothing here imports both worlds.
"""
