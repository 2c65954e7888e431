"""What settings of server and slices must not be, and what follows from them."""

from pathlib import Path
from typing import Any

import pytest

from blockdraft_runtime.settings.process import ProcessSettings
from blockdraft_runtime.settings.server import LimitsSettings, ServerSettings
from blockdraft_runtime.settings.verifier import SliceSettings


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        (ServerSettings, {"target": ""}, "--target"),
        (ServerSettings, {"verifiers": ()}, "--verifier"),
        (ServerSettings, {"verifiers": ("",)}, "--verifier"),
        (ServerSettings, {"verifiers": ("a", "a")}, "--verifier"),
        (ServerSettings, {"model_name": ""}, "--model-name"),
        (ServerSettings, {"poll_seconds": 0.0}, "poll_seconds"),
        (LimitsSettings, {"max_waiting": -1}, "max_waiting"),
        (LimitsSettings, {"max_prompt_bytes": 0}, "max_prompt_bytes"),
        (LimitsSettings, {"default_timeout_seconds": 0.0}, "default_timeout_seconds"),
        (LimitsSettings, {"default_timeout_seconds": float("nan")}, "default_timeout_seconds"),
        (LimitsSettings, {"recovery_seconds": -1.0}, "recovery_seconds"),
        (LimitsSettings, {"max_replays": -1}, "max_replays"),
        (ProcessSettings, {"address": "a:1", "drain_seconds": -1}, "drain_seconds"),
        *(
            (SliceSettings, dict(zip(SliceSettings.__slots__, values, strict=True)), message)
            for *values, message in (
                ("h", 2, 0, "host:port"),
                (":1", 2, 0, "host:port"),
                ("h:x", 2, 0, "host:port"),
                ("h:1", 1, 0, "at least 2"),
                ("h:1", 2, 2, "must be 0 to 1"),
                ("h:1", 2, -1, "at least 0"),
            )
        ),
    ],
)
def test_what_is_out_of_range_is_refused(kind: type, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kind(**changes)


def test_the_name_of_the_model(tmp_path: Path) -> None:
    assert ServerSettings(target="smollm2-135m").served_name == "smollm2-135m"
    assert ServerSettings(target="org/model-1.5").served_name == "org/model-1.5"
    assert ServerSettings(target="/x/Model.Q4.gguf").served_name == "Model.Q4"
    folder = tmp_path / "tiny-1.5"
    folder.mkdir()
    assert ServerSettings(target=str(folder)).served_name == "tiny-1.5"
    assert ServerSettings(target=str(folder), model_name="mine").served_name == "mine"


@pytest.mark.parametrize(("coordinator", "host"), [("h:1", "h"), ("[::1]:8482", "::1")])
def test_process_0_leads_at_the_coordinators_host(coordinator: str, host: str) -> None:
    leader, follower = (SliceSettings(coordinator, 2, number) for number in (0, 1))
    assert (leader.leads, follower.leads) == (True, False)
    assert follower.leader_host == host
