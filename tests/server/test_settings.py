import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from blockdraft_runtime.settings.server import LimitsSettings, ServerSettings, TlsSettings
from blockdraft_server.command import add_arguments, config_from


def parse(*flags: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(flags)


@pytest.mark.parametrize(
    "changes",
    [
        {"target": ""},
        {"verifiers": ()},
        {"verifiers": ("",)},
        {"verifiers": ("a", "a")},
        {"model_name": ""},
        {"api_keys": frozenset({" x"})},
        {"poll_seconds": 0.0},
    ],
)
def test_a_bad_configuration_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(changes))):
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


def test_keys_do_not_show_in_logs() -> None:
    assert "secret" not in repr(ServerSettings(api_keys=frozenset({"secret"})))


def test_the_name_of_the_model(tmp_path: Path) -> None:
    assert ServerSettings(target="smollm2-135m").served_name == "smollm2-135m"
    assert ServerSettings(target="org/model-1.5").served_name == "org/model-1.5"
    assert ServerSettings(target="/x/Model.Q4.gguf").served_name == "Model.Q4"
    folder = tmp_path / "tiny-1.5"
    folder.mkdir()
    assert ServerSettings(target=str(folder)).served_name == "tiny-1.5"
    assert ServerSettings(target=str(folder), model_name="mine").served_name == "mine"


def test_the_defaults_of_the_flags_are_those_of_the_configuration() -> None:
    config, listen = config_from(parse())
    assert config == ServerSettings()
    assert listen.address == "127.0.0.1:50051"
    assert listen.metrics_port is None


def test_flags_reach_the_configuration(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("alpha\n")
    flags = ["--target", "t", "--verifier", "a:1", "--verifier", "b:2", "--model-name", "m"]
    flags += ["--listen", "0.0.0.0:1", "--metrics-port", "9", "--api-key-file", str(keys)]
    flags += ["--tls-cert", "c", "--tls-key", "k", "--max-waiting", "3", "--drain-timeout", "4"]
    config, listen = config_from(parse(*flags))
    assert config == ServerSettings(
        target="t",
        verifiers=("a:1", "b:2"),
        model_name="m",
        api_keys=frozenset({"alpha"}),
        tls=TlsSettings(Path("c"), Path("k")),
        limits=LimitsSettings(max_waiting=3),
    )
    assert (listen.address, listen.metrics_port, listen.drain_seconds) == ("0.0.0.0:1", 9, 4.0)


def test_half_a_certificate_is_refused() -> None:
    with pytest.raises(ValueError, match="--tls-key"):
        config_from(parse("--tls-cert", "c"))


def test_the_parser_is_light() -> None:
    code = (
        "import sys, blockdraft_server.command\n"
        "print([name for name in ('grpc', 'jax', 'numpy', 'tokenizers') if name in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert result.stdout.strip() == "[]"
