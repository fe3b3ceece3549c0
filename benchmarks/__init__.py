"""Figures that a sceptic can rerun: each script starts its own servers and measures the floor beside the product."""
