"""Measurements: what the drafter gains, on which data, with what certainty."""
