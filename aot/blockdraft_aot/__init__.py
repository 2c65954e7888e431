"""Compiling ahead of time for TPUs that are not there: does it fit, and what would it cost."""
