"""What a KV cache may take of the memory."""

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from blockdraft_models import memory


def test_on_cpu_it_is_an_eighth_of_what_a_container_may_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(memory, "_CONTAINER_LIMIT", limit)
    assert memory.cache_budget_bytes(()) <= 1 << 30
    limit.write_text(f"{1 << 30}\n")
    assert memory.cache_budget_bytes(()) == 1 << 27
    limit.write_text("max\n")
    assert memory.cache_budget_bytes(()) <= 1 << 30


def test_an_accelerator_keeps_room_for_steps_beside_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Device:
        def memory_stats(self) -> dict[str, int]:
            return {"bytes_limit": 1000}

    monkeypatch.setattr(jax, "local_devices", lambda: [Device()])
    assert memory.cache_budget_bytes({"a": jnp.zeros(50, jnp.float32)}) == 650
    assert memory.cache_budget_bytes({"a": jnp.zeros(500, jnp.float32)}) == 0
