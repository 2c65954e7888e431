"""Command lines of other servers: they work, or each flag is answered with ours."""

import argparse
import re

import pytest

from blockdraft_client.cli.main import main
from blockdraft_server.supervise.command import CONFIGURATION, add_arguments
from blockdraft_server.supervise.equivalents import EQUIVALENTS

PARSER = argparse.ArgumentParser()
add_arguments(PARSER)
FLAGS = set(PARSER._option_string_actions)
HABITS = {
    "Qwen/Qwen3-4B --port 8000": "--openai 127.0.0.1:8000",
    "--port 8000 Qwen/Qwen3-4B": "--openai 127.0.0.1:8000",
    "--model Qwen/Qwen3-4B --host 0.0.0.0": "--openai 0.0.0.0:PORT",
    "Qwen/Qwen3-4B --tensor-parallel-size 2": "all chips",
    "Qwen/Qwen3-4B -tp 4 --max-model-len 8192": "all chips",
    "Qwen/Qwen3-4B --gpu-memory-utilization 0.9": "--kv-cache-memory",
    "Qwen/Qwen3-4B --max-num-seqs=64": "--max-sequences 64",
    "Qwen/Qwen3-4B --max-num-batched-tokens 8192": "--max-step-tokens 8192",
    "Qwen/Qwen3-4B --served-model-name qwen": "--model-name qwen",
    "Qwen/Qwen3-4B --api-key secret": "--api-key-file",
    "Qwen/Qwen3-4B --trust-remote-code": "no code",
    "Qwen/Qwen3-4B --enable-prefix-caching": "always",
    "Qwen/Qwen3-4B --quantization fp8": "--weights int8",
    "Qwen/Qwen3-4B --enable-auto-tool-choice --tool-call-parser hermes": "chat template",
    "Qwen/Qwen3-4B --reasoning-parser qwen3": "chat template",
    "--model-path Qwen/Qwen3-4B --mem-fraction-static 0.8": "--kv-cache-memory",
    "--model-path Qwen/Qwen3-4B --speculative-algorithm DFLASH": "--drafter NAME",
    "Qwen/Qwen3-4B --speculative-config {}": "--drafter NAME",
    "Qwen/Qwen3-4B --tensor_parallel_size 2": "all chips",
    "Qwen/Qwen3-4B --enable-lora --lora-modules a=b": "adapters are not served",
    "-m qwen.gguf -c 4096 -ngl 99": "--max-model-len 4096",
    "-hf ggml-org/Qwen3-4B-GGUF --jinja -ctk q8_0": "--kv-cache-dtype fp8",
    "-m qwen.gguf -md draft.gguf --draft-max 16": "--drafter draft.gguf",
    "-m qwen.gguf -t 8 -np 4": "--max-sequences 4",
}


@pytest.mark.parametrize("line", HABITS)
def test_a_habit_is_answered(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", *line.split()]) == 2
    message = capsys.readouterr().err
    assert HABITS[line] in message
    unknown = [word for word in re.split("[ =]", line) if re.match("--?[a-z]", word)]
    assert len(message.splitlines()) == len(set(unknown) - FLAGS)


@pytest.mark.parametrize("flag", ["-hf", "--hf-repo", "--model-path", "--model"])
def test_the_target_by_its_other_names(flag: str) -> None:
    settings = CONFIGURATION.read(PARSER.parse_args([flag, "Qwen/Qwen3-4B"]))
    assert settings.server.target == settings.verifier.target == "Qwen/Qwen3-4B"


def test_the_answers_name_flags_of_serve() -> None:
    for flag, answer in EQUIVALENTS.items():
        assert flag not in FLAGS, f"{flag} is a flag of serve"
        assert set(re.findall(r"--[a-z][a-z-]+", answer)) <= FLAGS, f"{flag}: {answer}"


def test_a_misspelt_flag_has_a_neighbour(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--max-modellen", "5"]) == 2
    assert "--max-modellen, did you mean --max-model-len?" in capsys.readouterr().err
    assert main(["generate", "--temprature", "1", "hi"]) == 2
    assert "did you mean --temperature?" in capsys.readouterr().err


def test_words_too_many(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "smollm2-135m", "another"]) == 2
    assert "unknown argument another" in capsys.readouterr().err
