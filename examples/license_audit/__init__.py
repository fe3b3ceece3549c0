"""Audits the licences and files of every Python distribution installed here: one durable run for each.

`python -m examples.license_audit` brings a database, a broker and a Celery fleet of its own, kills one of the workers
in the middle, and writes a report that is worth keeping.
"""
