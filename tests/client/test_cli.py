"""The command line against a fake server: output, exit codes, input."""

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.client.api import interrupt_streams
from tests.fakes.inference import TEXT, FakeInference, RunningFake, running_fake
from tests.patience import PATIENCE_SECONDS

from blockdraft_client.cli.main import COMMANDS, main
from blockdraft_protos.v1 import inference_pb2
from blockdraft_runtime.status import ServiceError


@pytest.fixture(autouse=True)
def _target(fake: RunningFake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLOCKDRAFT_ADDRESS", fake.target)


Capture = pytest.CaptureFixture[str]


def test_generate_prints_the_answer_alone(service: FakeInference, capsys: Capture) -> None:
    flags = ["--system", "be brief", "--max-tokens", "5", "--template-argument", "thinking=false"]
    assert main(["generate", "hi", *flags]) == 0
    assert capsys.readouterr() == (TEXT + "\n", "")
    (request,) = service.requests
    messages = request.prompt.conversation.messages
    said = [(item.role, item.content) for item in messages]
    assert said == [("system", "be brief"), ("user", "hi")]
    assert request.prompt.conversation.template_arguments == '{"thinking": false}'
    assert request.sampling == inference_pb2.SamplingOptions(max_output_tokens=5)


def test_generate_takes_every_sampling_flag(service: FakeInference) -> None:
    flags = "--temperature 0.5 --top-k 3 --top-p 0.25 --min-p 0.125 --seed 9 --stop a --stop b"
    flags += " --stop-token-id 4 --ignore-eos --json --logprobs 2 --no-draft --max-draft-tokens 1"
    flags += " --no-prompt-lookup --no-learn --priority background --min-tokens 2"
    flags += " --prompt-logprobs 1"
    flags += " --repetition-penalty 1.5 --frequency-penalty -0.5 --presence-penalty 0.25"
    flags += " --logit-bias 7=-1.5 --logit-bias 8=2 --allowed-token-id 9 --bad-word c --bad-word d"
    assert main(["generate", "hi", "--model", "fake", *flags.split()]) == 0
    assert service.requests[0] == inference_pb2.StreamGenerateRequest(
        model="fake",
        prompt=inference_pb2.Prompt(text="hi"),
        sampling=inference_pb2.SamplingOptions(
            temperature=0.5,
            top_k=3,
            top_p=0.25,
            min_p=0.125,
            seed=9,
            stop_sequences=["a", "b"],
            stop_token_ids=[4],
            ignore_eos=True,
            log_probs=2,
            min_tokens=2,
            prompt_log_probs=1,
            repetition_penalty=1.5,
            frequency_penalty=-0.5,
            presence_penalty=0.25,
            logit_bias={7: -1.5, 8: 2.0},
            allowed_token_ids=[9],
            bad_words=["c", "d"],
        ),
        speculation=inference_pb2.SpeculationOptions(
            disabled=True, max_draft_tokens=1, prompt_lookup_disabled=True, learning_disabled=True
        ),
        priority=inference_pb2.PRIORITY_BACKGROUND,
    )


@pytest.mark.parametrize(
    ("flags", "constraint"),
    [
        ("--json-schema {file}", inference_pb2.OutputConstraint(json_schema="content")),
        ("--grammar {file}", inference_pb2.OutputConstraint(grammar="content")),
        ("--json-object", inference_pb2.OutputConstraint(json_object=True)),
        ("--regex a+", inference_pb2.OutputConstraint(regex="a+")),
        (
            "--choice a --choice b",
            inference_pb2.OutputConstraint(choice=inference_pb2.Choices(texts=["a", "b"])),
        ),
    ],
)
def test_generate_takes_every_kind_of_constraint(
    service: FakeInference,
    tmp_path: Path,
    flags: str,
    constraint: inference_pb2.OutputConstraint,
) -> None:
    file = tmp_path / "file"
    file.write_text("content")
    assert main(["generate", "hi", *flags.format(file=file).split()]) == 0
    assert service.requests[0].sampling.constraint == constraint


@pytest.mark.parametrize(
    ("flags", "form"), [("", "text"), ("--raw", "text"), ("--chat", "conversation")]
)
def test_generate_continues_a_text_and_answers_a_message(
    service: FakeInference, flags: str, form: str
) -> None:
    assert main(["generate", "hi", *flags.split()]) == 0
    assert service.requests[0].prompt.WhichOneof("content") == form


def test_generate_prints_figures_when_asked(capsys: Capture) -> None:
    assert main(["generate", "hi", "--stats"]) == 0
    counts = "3 of 8 drafted tokens accepted (1 of 4 by prompt lookup)"
    expected = f"6 tokens, 2.0 tokens/s, τ 2.50, {counts}, TTFT 0.75 s\n"
    assert capsys.readouterr() == (TEXT + "\n", expected)


def test_generate_prints_one_json_object(capsys: Capture) -> None:
    assert main(["generate", "hi", "--json"]) == 0
    out, err = capsys.readouterr()
    value = json.loads(out)
    assert err == ""
    assert (value["text"], value["token_ids"]) == (TEXT, [1, 2, 3, 4, 5, 6])
    assert (value["finish_reason"], value["request_id"]) == ("stop", "request-1")
    assert value["usage"]["acceptance_length"] == 2.5
    assert value["usage"]["step_seconds"]["verify"] == 1.0
    first = {"token_id": 1, "token": "one", "log_prob": -0.5, "alternatives": []}
    assert value["log_probs"][0] == first


def test_the_prompt_can_come_from_stdin(
    service: FakeInference, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("from stdin"))
    assert main(["generate", "-"]) == 0
    assert service.requests[0].prompt.text == "from stdin"


@pytest.mark.parametrize("source", ["file", "-"])
def test_a_request_can_be_given_as_json(
    service: FakeInference, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    text = '{"prompt": {"tokenIds": {"values": [1, 2]}}, "sampling": {"topK": 4}}'
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    if source == "file":
        source = str(tmp_path / "request.json")
        Path(source).write_text(text)
    assert main(["generate", "--request", source]) == 0
    assert list(service.requests[0].prompt.token_ids.values) == [1, 2]
    assert service.requests[0].sampling.top_k == 4


def test_a_wrong_json_request_is_refused(
    service: FakeInference, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    for text, message in (
        ('{"promptt": {}}', 'no field named "promptt"'),
        ('{"sampling": {"topK": "many"}}', "topK"),
        ("{", "Failed to load JSON"),
    ):
        monkeypatch.setattr(sys, "stdin", io.StringIO(text))
        assert main(["generate", "--request", "-"]) == 2
        out, err = capsys.readouterr()
        assert (out, err.startswith("blockdraft: --request -: ")) == ("", True)
        assert message in err
        assert err.count("\n") == 1
    assert not service.calls


@pytest.mark.parametrize(
    "line",
    [
        *("", "unknown", "generate", "generate hi --unknown", "generate hi --raw --chat"),
        *("generate hi --raw --system x", "generate hi --top-k x", "generate hi --logprobs 2"),
        "generate hi --prompt-logprobs 2",
        *("generate hi --top-k 99999999999", "generate hi --request -"),
        *("generate hi --logit-bias 7", "generate hi --logit-bias x=1"),
        *("generate hi --template-argument x", "generate hi --template-argument x={"),
        *("generate hi --json-object --regex a", "generate hi --grammar /nonexistent"),
        *("generate --chat --request -", "generate --raw --request -"),
        *("generate --seed 1 --request -", "generate --request /nonexistent"),
        *("generate hi --ca-cert /nonexistent", "generate hi --no-tls --ca-cert /nonexistent"),
        *("generate hi --address example.com:1 --api-key k --no-tls", "demo --runs 3"),
    ],
)
def test_wrong_usage_exits_2(line: str, service: FakeInference, capsys: Capture) -> None:
    assert main(line.split()) == 2
    assert not service.calls
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert ("leave out the prompt" in err) == line.endswith("--request -")
    # What reads a flag has a private name.
    assert "_" not in err


@pytest.mark.parametrize(
    "line",
    [
        # Meant as an address, and once taken for --server-name.
        "generate hi --server example.com:1",
        *("serve --targe smollm2-135m", "train dflash --outpu run"),
        *("learn run --targe smollm2-135m", "bench decode --targe smollm2-135m"),
    ],
)
def test_a_flag_is_not_taken_for_a_longer_one(
    line: str, service: FakeInference, capsys: Capture
) -> None:
    assert main(line.split()) == 2
    assert not service.calls
    assert f"unknown argument {line.split()[-2]}" in capsys.readouterr().err


def test_a_server_error_exits_1(service: FakeInference, capsys: Capture) -> None:
    service.messages_before_error = 1
    service.error = ServiceError(
        grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL", "too busy", retry_after_seconds=2
    )
    assert main(["generate", "hi"]) == 1
    out, err = capsys.readouterr()
    assert out == "one two three\n"
    assert err == "blockdraft: QUEUE_FULL: too busy (try again in 2 s) [request request-1]\n"


def test_an_interrupt_cancels_the_call_and_exits_130(
    service: FakeInference, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    interrupt_streams(service, monkeypatch)
    assert main(["generate", "hi"]) == 130
    assert service.cancelled.wait(PATIENCE_SECONDS)
    assert capsys.readouterr().out == "one two three\n"


def test_health_says_whether_the_server_serves(fake: RunningFake, capsys: Capture) -> None:
    assert main(["health"]) == 0
    fake.set_serving(False)
    assert main(["health"]) == 1
    assert main(["health", "--json", "--service", "nobody"]) == 1
    serving, not_serving, value = capsys.readouterr().out.splitlines()
    assert (serving, not_serving) == ("SERVING, drafting unknown", "NOT_SERVING")
    expected = {"address": fake.target, "status": "SERVICE_UNKNOWN", "exactness": None}
    assert json.loads(value) == {**expected, "reason": None, "drafting": None}


def test_health_says_how_far_a_start_is(
    service: FakeInference, fake: RunningFake, capsys: Capture
) -> None:
    service.initial_failures = 99
    fake.set_serving(False)
    assert main(["health"]) == 1
    assert capsys.readouterr().out.startswith("NOT_SERVING, LOADING: still loading")


@pytest.mark.parametrize(
    ("exact", "classes", "words"),
    [
        (True, ["1x1 1x8"], "exact in bfloat16"),
        (False, ["1x1", "1x8"], "inexact in bfloat16, 2 classes of numerics"),
    ],
)
def test_health_and_models_say_whether_answers_are_exact(
    service: FakeInference, capsys: Capture, exact: bool, classes: list[str], words: str
) -> None:
    service.model = inference_pb2.GetModelResponse(
        model="fake",
        exactness=inference_pb2.ModelExactness(exact=exact, dtype="bfloat16", classes=classes),
    )
    assert main(["health"]) == 0
    assert main(["models"]) == 0
    assert main(["health", "--json"]) == 0
    health, *models, value = capsys.readouterr().out.splitlines()
    assert health == f"SERVING, {words}, drafting unknown"
    assert f"numerics            {words}" in models
    found = {"exact": exact, "dtype": "bfloat16", "classes": classes, "padded": []}
    assert json.loads(value)["exactness"] == found


def test_health_of_nobody_is_unreachable(capsys: Capture) -> None:
    with running_fake() as gone:
        target = gone.target
    assert main(["health", "--address", target]) == 1
    out, err = capsys.readouterr()
    assert out == "UNREACHABLE\n"
    assert f"cannot reach {target}" in err


def test_models_describes_what_is_served(service: FakeInference, capsys: Capture) -> None:
    assert main(["models", "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert (value["model"], value["max_context_tokens"]) == ("fake", 64)
    assert value["drafter"]["trained"] is False
    assert main(["models"]) == 0
    assert "drafter trained     no" in capsys.readouterr().out
    service.model = inference_pb2.GetModelResponse(model="fake")
    assert main(["models"]) == 0
    assert "none connected" in capsys.readouterr().out


def test_models_and_health_say_whether_drafting_pays(
    service: FakeInference, capsys: Capture
) -> None:
    counts = inference_pb2.SourceCounts(
        source=inference_pb2.TOKEN_SOURCE_PROMPT_LOOKUP, drafted_tokens=9, accepted_tokens=4
    )
    service.model = inference_pb2.GetModelResponse(
        drafting=inference_pb2.Drafting(
            state=inference_pb2.DRAFTING_STATE_PAUSED, reason="it was late", sources=[counts]
        )
    )
    assert main(["health"]) == 0
    assert main(["models"]) == 0
    health, *lines = capsys.readouterr().out.splitlines()
    assert health == "SERVING, drafting paused: it was late"
    assert lines[-2:] == [
        "drafting            paused: it was late",
        "  prompt lookup     4 of 9 drafted tokens accepted",
    ]
    assert main(["health", "--json"]) == 0
    drafting = json.loads(capsys.readouterr().out)["drafting"]
    assert drafting["sources"] == {"prompt_lookup": {"drafted": 9, "accepted": 4}}


def test_version(capsys: Capture) -> None:
    assert main(["version"]) == 0
    assert main(["version", "--json"]) == 0
    line, value = capsys.readouterr().out.splitlines()
    assert line == f"blockdraft {json.loads(value)['version']}"


def test_help_needs_neither_grpc_nor_jax() -> None:
    code = (
        "import sys; from blockdraft_client.cli.main import main\n"
        f"for command in {['', *COMMANDS]}:\n"
        "    code = main([*command.split(), '--help'])\n"
        "    heavy = {'grpc', 'jax', 'numpy', 'google.protobuf', 'rich'} & set(sys.modules)\n"
        "    if code or heavy: sys.exit(f'{command}: exit {code}, imported {heavy}')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    for command in COMMANDS:
        assert f"usage: blockdraft {command}" in done.stdout


def test_a_closed_pipe_is_not_a_crash(fake: RunningFake) -> None:
    fake.service.endless = True
    command = f"'{sys.executable}' -m blockdraft generate hi | head -c 20"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout == (TEXT * 2)[:20]


def test_output_that_cannot_be_written_is_one_line(fake: RunningFake) -> None:
    command = f"'{sys.executable}' -m blockdraft generate hi >/dev/full"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr == "blockdraft: [Errno 28] No space left on device\n"


def test_a_missing_extra_exits_2_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    import importlib

    real = importlib.import_module

    def without_server(name: str, *rest: Any) -> Any:
        if name.startswith("blockdraft_server"):
            raise ModuleNotFoundError("No module named 'absent'", name="absent")
        return real(name, *rest)

    monkeypatch.setattr(importlib, "import_module", without_server)
    assert main(["serve"]) == 2
    assert "pip install 'blockdraft[serve]'" in capsys.readouterr().err
