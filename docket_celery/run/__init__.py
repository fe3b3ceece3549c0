"""The durable execution document: what a run is, the events it leaves, and the transitions proposed for it."""
