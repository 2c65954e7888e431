"""`blockdraft chat` against a fake server."""

import builtins
import io
import json
import os
import sys
from collections.abc import Callable, Iterator

import grpc
import pytest
from tests.client.api import interrupt_streams
from tests.fakes.inference import TEXT, FakeInference, RunningFake
from tests.patience import PATIENCE_SECONDS

from blockdraft_client.cli.main import main
from blockdraft_client.cli.source_colors import in_colors
from blockdraft_client.results import Chunk
from blockdraft_protos.v1 import inference_pb2 as pb
from blockdraft_runtime.status import ServiceError

Capture = pytest.CaptureFixture[str]


def asked(service: FakeInference) -> list[pb.StreamGenerateRequest]:
    """Return the requests for answers, which come after the one whether there is a server."""
    assert service.calls[0] == "GetModel"
    return service.requests[1:]


def said(request: pb.StreamGenerateRequest) -> list[tuple[str, str]]:
    messages = request.prompt.conversation.messages
    return [(message.role, message.content) for message in messages]


@pytest.fixture
def chat(fake: RunningFake, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Return what runs the command on lines, with flags."""

    def run(lines: str, *flags: str) -> int:
        monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
        return main(["chat", "--address", fake.target, *flags])

    return run


def test_the_conversation_is_remembered_until_reset(
    chat: Callable[..., int], service: FakeInference, capsys: Capture
) -> None:
    assert chat("a\n\nb\n/reset\nc\n", "--system", "s") == 0
    first, second, third = (said(request) for request in asked(service))
    assert first == [("system", "s"), ("user", "a")]
    assert second == [*first, ("assistant", TEXT), ("user", "b")]
    assert third == [("system", "s"), ("user", "c")]
    assert capsys.readouterr().out == f"{TEXT}\n" * 3


def test_what_is_no_command_is_not_asked(
    chat: Callable[..., int], service: FakeInference, capsys: Capture
) -> None:
    assert chat("/help\n/quit\n/etc/hosts, what is it?\n") == 0
    [request] = asked(service)
    assert said(request) == [("user", "/etc/hosts, what is it?")]
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("/reset forgets")
    assert second.startswith("/quit is no command: /reset")


def test_json_prints_one_object_per_answer_until_exit(
    chat: Callable[..., int], service: FakeInference, capsys: Capture
) -> None:
    assert chat("a\nb\n/exit\nc\n", "--json") == 0
    values = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [value["text"] for value in values] == [TEXT, TEXT]
    assert len(asked(service)) == 2


def test_a_failed_answer_is_reported_and_the_chat_goes_on(
    chat: Callable[..., int], service: FakeInference, capsys: Capture
) -> None:
    service.error = ServiceError(grpc.StatusCode.INTERNAL, "INTERNAL", "broken")
    assert chat("a\nb\n") == 0
    assert said(asked(service)[1]) == [("user", "b")]
    assert capsys.readouterr().err == "blockdraft: INTERNAL: broken\n" * 2


def test_an_interrupted_answer_is_kept_as_far_as_it_came(
    chat: Callable[..., int],
    service: FakeInference,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
) -> None:
    interrupt_streams(service, monkeypatch)
    assert chat("a\nb\n") == 0
    assert service.cancelled.wait(PATIENCE_SECONDS)
    begun = [("user", "a"), ("assistant", "one two three"), ("user", "b")]
    assert said(asked(service)[1]) == begun
    assert capsys.readouterr().err == "stopped\n" * 2


def test_an_interrupt_at_the_prompt_drops_the_line(
    fake: RunningFake, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs: Iterator[str | type[BaseException]] = iter([KeyboardInterrupt, "a", EOFError])

    def typed(prompt: str = "") -> str:
        item = next(inputs)
        if isinstance(item, str):
            return item
        raise item

    monkeypatch.setattr(builtins, "input", typed)
    assert main(["chat", "--address", fake.target]) == 0
    assert len(asked(fake.service)) == 1


def test_a_number_that_fits_no_field_is_one_line(
    chat: Callable[..., int], service: FakeInference, capsys: Capture
) -> None:
    assert chat("hi\n", "--seed", "99999999999999999999") == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert not asked(service)


@pytest.mark.parametrize("no_color", ["", "1"])
def test_tokens_in_the_colours_of_their_sources(
    chat: Callable[..., int], monkeypatch: pytest.MonkeyPatch, no_color: str
) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    master, slave = os.openpty()
    with os.fdopen(slave, "w") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        assert chat("a\n", "--colors") == 0
        painted = ""
        while not painted.endswith("\n"):
            painted += os.read(master, 1 << 10).decode()
    os.close(master)
    colors = "\x1b[32mone\x1b[0m two\x1b[34m three\x1b[0m\x1b[33m four\x1b[0m five six"
    assert painted.splitlines() == [TEXT if no_color else colors]


def test_no_colours_where_no_terminal_shows_them(
    chat: Callable[..., int], service: FakeInference, capsys: Capture
) -> None:
    assert chat("a\n", "--colors") == 0
    assert capsys.readouterr() == (f"{TEXT}\n", "")
    [request] = asked(service)
    assert not request.sampling.HasField("log_probs")


def test_what_the_tokens_do_not_amount_to_has_no_colours() -> None:
    log_prob = pb.TokenLogProb(token=b"one<|end|>")
    message = pb.StreamGenerateResponse(
        text="one",
        log_probs=[pb.TokenLogProbs(chosen=log_prob)],
        token_sources=[pb.TOKEN_SOURCE_DRAFTER],
    )
    assert in_colors(Chunk.from_proto(message)) == "one"
