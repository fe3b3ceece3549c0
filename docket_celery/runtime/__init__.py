"""Supersteps: from a committed run to the next proposed moment. No I/O, no clock, no chance of its own."""
