"""A task that the app had before."""

from __future__ import annotations

from celery import shared_task


@shared_task
def receipt(order_id: str) -> dict[str, str]:
    return {"order": order_id}
