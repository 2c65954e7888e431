"""Tests here need eight devices; `tests/test_eight_devices.py` runs them with simulated ones."""

import jax

if jax.device_count() < 8:
    collect_ignore_glob = ["test_*.py"]
