"""The vehicle: the short-lived execution shell of one lease, and how a drain can end."""

from docket_celery.vehicle.drive import Vehicle
from docket_celery.vehicle.outcomes import Outcome

__all__ = ["Outcome", "Vehicle"]
