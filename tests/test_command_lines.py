"""Every setting of every command: its flag, variable, key, default, range, help, and `serve`."""

import argparse
import dataclasses
import os
import re
import subprocess
import sys
from dataclasses import MISSING
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.command_lines import CONFIGURATIONS, MODULES, parse, values_of

from blockdraft_runtime.configuration.command import Configuration
from blockdraft_runtime.configuration.values import Setting, build
from blockdraft_server.supervise.plan import DRAFTER, SERVER, VERIFIER, ServePlan, ServeSettings

CASES: list[Any] = [
    pytest.param(configuration, setting, id=f"{command} --{name}")
    for command, configuration in CONFIGURATIONS.items()
    for name, setting in configuration.settings.items()
]
# Not any text is a value of these.
PICKY = [
    case
    for case in CASES
    if case.values[1].kind not in (str, Path) and case.values[1].declaration.parse is None
]
# What `serve` decides about its processes: who listens where, and who they are.
DECIDED = {
    "server": {"verifier"},
    "verifier": {"coordinator", "num-processes", "process-id", "self-test"},
    "drafter": {"find"},
}
SERVE = CONFIGURATIONS["serve"]
PEER_TLS = {"peer-tls-cert", "peer-tls-key", "peer-tls-ca"}
# What some commands cannot do without, by the setting that asks for it; and what belongs together.
NEEDED = {
    "corpus": "--corpus=c",
    "output": "--output=o.jsonl",
    "prompts": "--self-chat=1",
    "topology": "--topology=v5p:2x2x1",
    "context-tokens": "--context-tokens=9",
}
GROUPS = (
    ["--tls-cert=c", "--tls-key=k"],
    ["--peer-tls-cert=c", "--peer-tls-key=k", "--peer-tls-ca=a"],
    ["--coordinator=h:1", "--num-processes=999", "--process-id=0"],
)
# Names the client and the models read, see docs/configuration.md.
OTHER_VARIABLES = {
    f"BLOCKDRAFT_{name}" for name in ("TARGET", "API_KEY", "CA_CERT", "CACHE", "DATASETS")
}


def toml(value: Any) -> str:
    """Return a value as TOML writes it."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else f'"{value}"'


def examples(setting: Setting) -> tuple[Any, Any]:
    """Return two values that differ from each other and from the default."""
    kind = setting.kind
    if setting.many:
        first, second = examples(dataclasses.replace(setting, many=False))
        return (first,), (second,)
    if kind is bool:
        return (not setting.default, bool(setting.default))
    if kind is int:
        # Powers of two, as some must be.
        first = 1 << int(max(setting.declaration.minimum or 0, 128)).bit_length()
        return first, 2 * first
    if kind is float:
        least = setting.declaration.minimum or 0.0
        return least + 0.25, least + 0.75
    if hasattr(kind, "__args__"):
        return kind.__args__[-1], kind.__args__[0]
    if (setting.declaration.metavar or "").endswith("HOST:PORT"):
        return "a:1", "b:2"
    parse_text = setting.declaration.parse or kind
    return parse_text("one.jsonl"), parse_text("two.jsonl")


def resolve_one(
    configuration: Configuration[Any],
    setting: Setting,
    flags: list[str],
    environ: dict[str, str] | None = None,
) -> Any:
    """Return what one setting becomes, with whatever else the command then needs."""
    found = configuration.resolve(
        parse(configuration, *companions(configuration, setting), *flags), environ or {}
    )
    for name in setting.paths[-1]:
        found = getattr(found, name)
    return found


def companions(configuration: Configuration[Any], setting: Setting) -> list[str]:
    """Return flags without which a setting means nothing, or nothing valid."""
    needed = configuration.settings.keys() & NEEDED.keys() - {setting.name}
    told = [NEEDED[name] for name in sorted(needed)]
    if setting.name == "unconstrained":
        told.append("--address=a:1")
    if setting.name == "production":
        told += ["--api-key-file=k", "--tls-elsewhere"]
    if setting.name == "max-sequences" and "max-step-tokens" in configuration.settings:
        told.append("--max-step-tokens=4096")
    if configuration is SERVE and setting.name in ("no-server", *PEER_TLS):
        told.append("--peer-listen=0.0.0.0:50052")
    told += next((flags for flags in GROUPS if f"--{setting.name}=" in " ".join(flags)), [])
    if setting.name == "tls-client-ca":
        told += GROUPS[0]
    return [flag for flag in told if not flag.startswith(f"--{setting.name}=")]


def flags_for(setting: Setting, value: Any) -> list[str]:
    if setting.kind is bool:
        return [f"--{setting.name}"] if value else [f"--no-{setting.name}"]
    return [f"--{setting.name}={text}" for text in setting.to_texts(value)]


@pytest.mark.parametrize(("configuration", "setting"), CASES)
def test_flag_before_variable_before_file_before_default(
    configuration: Configuration[Any], setting: Setting, tmp_path: Path
) -> None:
    first, second = examples(setting)
    section = configuration.command.replace(" ", ".")
    file = tmp_path / "settings.toml"
    file.write_text(f"[{section}]\n{setting.name} = {toml(first)}\n", "utf-8")
    name = configuration.variable(setting.name)
    [text] = setting.to_texts(second)
    config = f"--config={file}"
    assert resolve_one(configuration, setting, [config]) == first
    assert resolve_one(configuration, setting, [config], {name: text}) == second
    if setting.kind is bool and setting.name.startswith("no-"):
        assert resolve_one(configuration, setting, [f"--{setting.name}"], {name: "false"}) is True
        return
    flags = [config, *flags_for(setting, first)]
    assert resolve_one(configuration, setting, flags, {name: text}) == first


@pytest.mark.parametrize(("configuration", "setting"), PICKY)
def test_a_bad_value_is_named_with_its_source(
    configuration: Configuration[Any], setting: Setting, tmp_path: Path
) -> None:
    name = configuration.variable(setting.name)
    with pytest.raises(ValueError, match=rf"^{name} must be .*, got 'bad'$"):
        configuration.resolve({}, {name: "bad"})
    if setting.kind is not bool:
        with pytest.raises(ValueError, match=rf"^--{setting.name} must be .*, got 'bad'$"):
            configuration.resolve(parse(configuration, f"--{setting.name}=bad"), {})
    file = tmp_path / "settings.toml"
    section = configuration.command.replace(" ", ".")
    file.write_text(f'[{section}]\n{setting.name} = "bad"\n', "utf-8")
    with pytest.raises(ValueError, match=rf"^{setting.name} in \[{section}\] of .*toml must be "):
        configuration.resolve({"config": str(file)}, {})


@pytest.mark.parametrize(("configuration", "setting"), CASES)
def test_what_is_out_of_range_is_refused(
    configuration: Configuration[Any], setting: Setting
) -> None:
    declaration = setting.declaration
    bad = [
        *([] if declaration.minimum is None else [declaration.minimum - 1]),
        *([] if declaration.above is None else [declaration.above]),
        *([] if declaration.maximum is None else [declaration.maximum + 1]),
    ]
    for value in bad:
        with pytest.raises(ValueError, match=rf"^--{setting.name} must be .*, got"):
            configuration.resolve(parse(configuration, f"--{setting.name}={value:g}"), {})


@pytest.mark.parametrize(
    ("configuration", "setting"), [case for case in CASES if case.values[1].declaration.distinct]
)
def test_the_same_value_twice_is_refused(
    configuration: Configuration[Any], setting: Setting
) -> None:
    [text] = setting.to_texts(examples(setting)[0])
    with pytest.raises(ValueError, match=rf"^--{setting.name} has the same value twice"):
        configuration.resolve(parse(configuration, f"--{setting.name}", text, text), {})


def printed_help(
    configuration: Configuration[Any], flag: str, capsys: pytest.CaptureFixture[str]
) -> str:
    parser = argparse.ArgumentParser(f"blockdraft {configuration.command}")
    configuration.add_arguments(parser)
    with pytest.raises(SystemExit) as caught:
        parser.parse_args([flag])
    assert caught.value.code == 0
    return capsys.readouterr().out


def is_brief(configuration: Configuration[Any]) -> bool:
    return any(setting.declaration.common for setting in configuration.settings.values())


@pytest.mark.parametrize("configuration", CONFIGURATIONS.values(), ids=CONFIGURATIONS)
def test_help_says_all(
    configuration: Configuration[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    flag = "--help-all" if is_brief(configuration) else "--help"
    text = " ".join(printed_help(configuration, flag, capsys).split())
    for setting in configuration.settings.values():
        assert f"--{setting.name}" in text
        # Long words are broken at hyphens.
        shown = text.replace("- ", "-").partition(f"{setting.declaration.help.replace('- ', '-')} ")
        assert shown[1]
        if isinstance(setting.default, int) and not isinstance(setting.default, bool):
            assert shown[2].startswith(f"(default: {setting.default})")


def test_help_of_what_serves_is_one_screen(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    brief = [each for each in CONFIGURATIONS.values() if is_brief(each)]
    assert {each.command for each in brief} == {"serve", "server", "verifier", "drafter", "hosted"}
    for configuration in brief:
        text = printed_help(configuration, "--help", capsys)
        assert len(text.splitlines()) <= 48
        shown = set(re.findall(r"^  --([a-z-]+)", text, re.M)) - {"help", "help-all", "config"}
        common = {name for name, one in configuration.settings.items() if one.declaration.common}
        assert shown == common
        assert len(common) <= 22


def test_help_of_serve_is_grouped_by_process(capsys: pytest.CaptureFixture[str]) -> None:
    groups = re.split(r"^(\w+):\n", printed_help(SERVE, "--help-all", capsys), flags=re.M)
    flags_by_group = {
        title: set(re.findall(r"^  --([a-z-]+)", text, re.M))
        for title, text in zip(groups[1::2], groups[2::2], strict=True)
    }
    assert list(flags_by_group) == ["options", "verifier", "drafter", "server"]
    assert {"run-dir", "help-all"} <= flags_by_group["options"]
    assert {"target", "max-sequences"} <= flags_by_group["verifier"]
    assert {"drafter", "learn"} <= flags_by_group["drafter"]
    assert {"openai", "max-prompt-bytes"} <= flags_by_group["server"]


@pytest.mark.parametrize("configuration", CONFIGURATIONS.values(), ids=CONFIGURATIONS)
def test_nothing_said_is_the_default(configuration: Configuration[Any]) -> None:
    if not any(setting.default is MISSING for setting in configuration.settings.values()):
        assert configuration.resolve(parse(configuration), {}) == configuration.kind()
        assert configuration.flags(configuration.kind()) == ()


def test_no_variable_means_two_things() -> None:
    names = [name for each in CONFIGURATIONS.values() for name in each.variables]
    assert len(names) == len(set(names))
    assert not OTHER_VARIABLES & set(names)


def test_whatever_serve_does_not_decide_is_a_setting_of_serve() -> None:
    for configuration in (SERVER, VERIFIER, DRAFTER):
        missing = set(configuration.settings) - set(SERVE.settings)
        assert missing == DECIDED[configuration.command]


@given(data=st.data())
def test_the_processes_of_serve_are_told_what_serve_was_told(data: st.DataObject) -> None:
    values = {
        path: value
        for setting in SERVE.settings.values()
        if setting.name
        not in ("tpu-split", "tpu-host", "metrics-port", "run-dir", "tls-key", "servers")
        # Then the settings of two are told to one: tests/server/supervise/test_plan.py.
        and setting.name != "drafter-placement"
        # Others may have to be there too, or must not.
        and setting.name not in ("tls-client-ca", "tls-elsewhere", "production")
        and setting.name not in ("peer-tls-key", "peer-tls-ca", "num-pages", "openai")
        and data.draw(st.booleans(), f"{setting.name} given")
        for value in [data.draw(values_of(setting), setting.name)]
        for path in setting.paths
    }
    if (certificate := ("server", "tls", "certificate")) in values:
        values["server", "tls", "key"] = values[certificate]
    peer_tls = ("verifier", "peer_tls")
    if (certificate := (*peer_tls, "certificate")) in values:
        values[*peer_tls, "key"] = values[*peer_tls, "authorities"] = values[certificate]
    if values.get(("no_server",)) or certificate in values:
        values["verifier", "peer_address"] = "0.0.0.0:50052"
    steps, sequences = (
        ("verifier", "engine", "scheduler", name) for name in ("max_step_tokens", "max_sequences")
    )
    values[steps] = max(values.get(steps, 128), values.get(sequences, 16))
    if values.get(("verifier", "engine", "implementation")) == "torch":
        values.pop(("verifier", "engine", "weights"), None)
        values.pop(("verifier", "adapters"), None)
    if values.get(("no_drafter",)):
        values.pop(("drafter", "drafter"), None)
    told: ServeSettings = build(ServeSettings, values)
    # As if somebody had set every variable of every process.
    hostile = {name: "bad" for each in (SERVER, VERIFIER, DRAFTER) for name in each.variables}
    plan = ServePlan.of(told, Path("/run/bd"), {**hostile, "HOME": "/home"})
    for child in plan.children():
        if child.name == "trainer":
            # It is told what is its own: tests/server/supervise/test_plan.py.
            continue
        configuration = CONFIGURATIONS[child.name]
        assert child.command[1:3] == ("-m", f"blockdraft_{child.name}")
        assert child.environment == {"HOME": "/home"}
        read = configuration.resolve(parse(configuration, *child.command[3:]), child.environment)
        assert read == getattr(plan, child.name)
        for path, value in values.items():
            if path[0] == child.name and path[1] not in ("process", "model_name"):
                assert follow(read, path[1:]) == value
        assert read.process.drain_seconds == told.server.process.drain_seconds
        assert read.process.log_level == told.server.process.log_level
    if plan.server is not None:
        assert plan.server.process.address == told.server.process.address
        assert plan.server.served_name == told.server.served_name
    without = {"server"} if told.no_server else set()
    without |= {"drafter"} if told.no_drafter else set()
    expected = {"server", "verifier", "drafter"} - without
    expected |= {"trainer"} if plan.learns else set()
    assert {child.name for child in plan.children()} == expected


def follow(settings: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        settings = getattr(settings, name)
    return settings


def test_help_waits_for_nothing_heavy() -> None:
    code = (
        "import argparse, importlib, sys\n"
        f"for name in {MODULES!r}:\n"
        "    importlib.import_module(name).add_arguments(argparse.ArgumentParser())\n"
        "heavy = {'jax', 'flax', 'grpc', 'numpy', 'tokenizers', 'optax', 'rich'}\n"
        "heavy |= {'importlib.metadata', 'google.protobuf', 'prometheus_client'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("role", ["server", "verifier", "drafter"])
def test_a_process_starts_as_a_module(role: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"blockdraft_{role}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, f"BLOCKDRAFT_{role.upper()}_DRAIN_TIMEOUT": "-1"},
    )
    assert done.returncode == 2
    assert done.stderr == (
        f"blockdraft {role}: BLOCKDRAFT_{role.upper()}_DRAIN_TIMEOUT must be at least 0, got -1\n"
    )


def test_settings_are_frozen() -> None:
    for configuration in CONFIGURATIONS.values():
        assert dataclasses.fields(configuration.kind)
        assert configuration.kind.__dataclass_params__.frozen
