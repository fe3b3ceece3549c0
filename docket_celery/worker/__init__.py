"""Docket inside a Celery app: the only package that knows Celery."""
