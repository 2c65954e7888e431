from pathlib import Path
from typing import Any

import pytest

from blockdraft_runtime.settings.server import LimitsSettings, ServerSettings


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"target": ""}, "--target"),
        ({"verifiers": ()}, "--verifier"),
        ({"verifiers": ("",)}, "--verifier"),
        ({"verifiers": ("a", "a")}, "--verifier"),
        ({"model_name": ""}, "--model-name"),
        ({"poll_seconds": 0.0}, "poll_seconds"),
    ],
)
def test_bad_settings_are_refused(changes: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        ServerSettings(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"max_waiting": -1},
        {"max_prompt_bytes": 0},
        {"default_timeout_seconds": 0.0},
        {"default_timeout_seconds": float("nan")},
        {"recovery_seconds": -1.0},
        {"max_replays": -1},
    ],
)
def test_bad_limits_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(changes))):
        LimitsSettings(**changes)


def test_the_name_of_the_model(tmp_path: Path) -> None:
    assert ServerSettings(target="smollm2-135m").served_name == "smollm2-135m"
    assert ServerSettings(target="org/model-1.5").served_name == "org/model-1.5"
    assert ServerSettings(target="/x/Model.Q4.gguf").served_name == "Model.Q4"
    folder = tmp_path / "tiny-1.5"
    folder.mkdir()
    assert ServerSettings(target=str(folder)).served_name == "tiny-1.5"
    assert ServerSettings(target=str(folder), model_name="mine").served_name == "mine"
