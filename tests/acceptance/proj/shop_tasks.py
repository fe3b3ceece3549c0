"""Tasks that an app had before it met docket."""

from __future__ import annotations

from celery import shared_task

from proj.nodes import connect


@shared_task
def add(x: int, y: int) -> int:
    return x + y


@shared_task
def total(parts: list[int]) -> int:
    return sum(parts)


@shared_task(bind=True)
def where(self) -> str:
    """The queue that the message came through."""
    return self.request.delivery_info["routing_key"]


@shared_task
def nightly(mark: str) -> None:
    with connect() as connection:
        connection.execute("INSERT INTO nights (mark) VALUES (%s)", (mark,))
