"""Limits that make no sense are refused before anything is scheduled."""

import pytest

from blockdraft_runtime.settings.verifier import CacheSettings, EngineSettings, SchedulerSettings


@pytest.mark.parametrize(
    "limits",
    [
        {"max_sequences": 0},
        {"max_step_tokens": 0, "max_sequences": 0},
        {"max_sequences": 5, "max_step_tokens": 4},
    ],
)
def test_senseless_limits_are_refused(limits: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must"):
        SchedulerSettings(**limits)


def test_limits_at_their_smallest() -> None:
    SchedulerSettings(1, 1, 1)
    SchedulerSettings(max_sequences=4, max_step_tokens=4)
    CacheSettings(max_model_len=1, kv_cache_bytes=1)
    EngineSettings(page_size=1, num_pages=1, draft_groups=2, draft_timeout_seconds=1e-3)


@pytest.mark.parametrize(
    "limits",
    [
        {"page_size": 0},
        {"draft_groups": 0},
        {"draft_groups": 3},
        {"draft_timeout_seconds": 0.0},
    ],
)
def test_senseless_engines_are_refused(limits: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must"):
        EngineSettings(**limits)  # type: ignore[arg-type]


@pytest.mark.parametrize("field", ["max_model_len", "kv_cache_bytes", "num_pages"])
def test_senseless_sizes_are_refused(field: str) -> None:
    with pytest.raises(ValueError, match="must"):
        CacheSettings(**{field: 0})
