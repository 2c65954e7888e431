"""The element type of serving: what was asked for, or what the device is fast in."""

import jax
import pytest

from blockdraft_models import precision
from blockdraft_models.precision import serving_dtype


@pytest.mark.parametrize(
    ("asked", "backend", "kernels", "chosen"),
    [
        ("auto", "cpu", True, "bfloat16"),
        ("auto", "cpu", False, "float32"),
        ("auto", "tpu", False, "bfloat16"),
        ("auto", "gpu", False, "float32"),
        ("float32", "cpu", True, "float32"),
        ("bfloat16", "cpu", False, "bfloat16"),
    ],
)
def test_auto_is_what_the_device_is_fast_in(
    monkeypatch: pytest.MonkeyPatch, asked: str, backend: str, kernels: bool, chosen: str
) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    monkeypatch.setattr(precision, "in_kernels", lambda: kernels)
    assert serving_dtype(asked).name == chosen
