import json
import os
from pathlib import Path

import pytest
from tests.command_lines import parse
from tests.drafter.process import write_tiny_target

from blockdraft_models.weights.loading import load_checkpoint_config
from blockdraft_server.supervise import command
from blockdraft_server.supervise.command import CONFIGURATION, plan_for_target
from blockdraft_server.supervise.plan import ServePlan


def plan(folder: Path, *flags: str) -> ServePlan:
    settings = CONFIGURATION.resolve(parse(CONFIGURATION, *flags), {})
    return plan_for_target(settings, folder, os.environ)


def test_an_unknown_target_is_served_without_a_drafter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    target = str(write_tiny_target(tmp_path / "target"))
    found = plan(tmp_path, "--target", target)
    assert [child.name for child in found.children()] == ["server", "verifier"]
    assert "starting no drafter" in caplog.text
    # What was named is started, whether it can be loaded or not.
    monkeypatch.setattr(command, "_drafter_exists", lambda *_: False)
    assert plan(tmp_path, "--target", target, "--drafter", "random").drafter is not None
    # All chips are the verifier's.
    found = plan(tmp_path, "--target", target, "--tpu-host", "v5p-8")
    assert found.chips["verifier"]["TPU_VISIBLE_CHIPS"] == "0,1,2,3"
    with pytest.raises(ValueError, match="exclude each other"):
        plan(tmp_path, "--target", target, "--tpu-host", "v5p-8", "--tpu-split", "2+2")


def test_a_target_that_cannot_be_read_ends_the_start(tmp_path: Path) -> None:
    target = write_tiny_target(tmp_path / "target")
    load_checkpoint_config(target)
    config = json.loads((target / "config.json").read_text("utf-8"))
    (target / "config.json").write_text(json.dumps({**config, "hidden_size": -1}), "utf-8")
    with pytest.raises(ValueError, match="cannot look for a drafter"):
        plan(tmp_path, "--target", str(target))
