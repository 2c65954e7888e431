"""What `serve` prints when it is ready."""

import asyncio
import os
import re
from pathlib import Path

import pytest
from tests.command_lines import parse
from tests.fakes.verifier import FakeVerifier, running_verifier
from tests.patience import PATIENCE_SECONDS

from blockdraft_protos.v1 import verifier_pb2 as pb
from blockdraft_server.supervise.command import CONFIGURATION, numeric
from blockdraft_server.supervise.plan import ServePlan
from blockdraft_server.supervise.summary import describe, facts, gateway_ready

DRAFTER = pb.AttachedDrafter(method="eagle3", block_size=8, trained=True)


def told(
    *flags: str, drafter: pb.AttachedDrafter | None = DRAFTER, **exactness: object
) -> dict[str, str]:
    """Return the lines of a service that was started with flags."""
    settings = CONFIGURATION.resolve(parse(CONFIGURATION, *flags), {})
    description = pb.VerifierServiceDescribeResponse(
        max_context_tokens=8192, max_sequences=16, kv_cache_tokens=23296, drafter=drafter
    )
    values = {"exact": True, "dtype": "bfloat16"} | exactness
    description.exactness.CopyFrom(pb.Exactness(**values))  # type: ignore[arg-type]
    return dict(facts(ServePlan.of(settings, Path("/run/bd"), os.environ), description))


def test_all_that_one_asks_first() -> None:
    assert told() == {
        "model": "smollm2-135m, bfloat16, exact: drafting never changes a token",
        "context": "8,192 tokens for each of up to 16 sequences; the KV cache holds 23,296",
        "drafter": "EAGLE-3, block of 8, trained; prompt lookup",
        "ask": 'blockdraft generate --chat "Why is the sky blue?"',
    }


@pytest.mark.parametrize(
    ("flags", "drafter", "words"),
    [
        (("--no-drafter",), None, "prompt lookup"),
        (("--no-drafter", "--no-prompt-lookup"), None, "none: every token is decoded plainly"),
        (
            ("--learn",),
            pb.AttachedDrafter(method="dflash", block_size=8),
            "DFlash, block of 8, untrained, learns from requests (only DFlash can; EAGLE-3 may "
            "draft faster); prompt lookup",
        ),
    ],
)
def test_what_drafts(
    flags: tuple[str, ...], drafter: pb.AttachedDrafter | None, words: str
) -> None:
    assert told(*flags, drafter=drafter)["drafter"] == words


def test_how_exact_it_is() -> None:
    assert "exact in practice" in told(dtype="float32", exact=False)["model"]
    assert "not exact" in told(exact=False)["model"]
    assert "int8 weights" in told("--weights", "int8")["model"]


def test_the_command_names_an_address_that_is_not_the_default() -> None:
    assert told("--listen", "0.0.0.0:50051")["ask"].endswith('blue?"')
    assert told("--listen", "localhost:8000")["ask"].endswith("--address localhost:8000")
    assert "ask" not in told("--no-server", "--peer-listen", "0.0.0.0:50052")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--api-key-file", "keys"), "passes no keys on"),
        (("--no-server", "--peer-listen", "0.0.0.0:1"), "exclude each other"),
        (("--listen", "unix:/tmp/a.sock"), "--openai needs --listen host:port"),
        (("--listen", "127.0.0.1:0"), "with a port other than 0"),
        (("--listen", "127.0.0.1:8000"), "must not be the same address"),
        (("--servers", "2"), "cannot be used with --servers|exclude each other"),
    ],
)
def test_what_openai_does_not_go_with(flags: tuple[str, ...], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        told("--openai", "127.0.0.1:8000", *flags)


def test_openai_is_no_socket() -> None:
    with pytest.raises(ValueError, match="must be host:port"):
        told("--openai", "unix:/x")


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("127.0.0.1:8000", "127.0.0.1:8000"),
        ("localhost:8000", r"127.0.0.1:8000|\[::1\]:8000"),
        (":8000", r"0.0.0.0:8000|\[::\]:8000"),
        ("[::1]:8000", r"\[::1\]:8000"),
    ],
)
def test_smg_takes_no_names(address: str, found: str) -> None:
    assert re.fullmatch(found, numeric(address))


@pytest.mark.parametrize(
    ("listen", "behind"),
    [("0.0.0.0:50051", "127.0.0.1:50051"), ("10.0.0.5:1", "10.0.0.5:1"), ("[::1]:2", "[::1]:2")],
)
def test_how_the_gateway_is_started(listen: str, behind: str) -> None:
    flags = ("--openai", "127.0.0.1:8000", "--listen", listen, "--drain-timeout", "300")
    settings = CONFIGURATION.resolve(parse(CONFIGURATION, *flags), {})
    plan = ServePlan.of(settings, Path("/run/bd"), os.environ).gatewayed("127.0.0.1:8000", 9)
    gateway, server = plan.children()[:2]
    assert (gateway.name, server.name) == ("openai", "server")
    assert gateway.command[2:4] == ("blockdraft_server.supervise.openai", behind)
    expected = {"--host=127.0.0.1", "--port=8000", "--prometheus-port=9"}
    assert expected | {"--shutdown-grace-period-secs=300"} <= set(gateway.command)
    assert gateway.stop_seconds == server.stop_seconds == 310


def test_the_metrics_of_the_gateway_come_after_the_others() -> None:
    flags = ("--openai", "127.0.0.1:8000", "--metrics-port", "9100")
    settings = CONFIGURATION.resolve(parse(CONFIGURATION, *flags), {})
    plan = ServePlan.of(settings, Path("/run/bd"), os.environ).gatewayed("127.0.0.1:8000", 9)
    assert "--prometheus-port=9103" in plan.children()[0].command


async def test_a_gateway_that_is_ready_is_found() -> None:
    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(respond, "127.0.0.1", 0) as gateway:
        port = gateway.sockets[0].getsockname()[1]
        assert await gateway_ready(f"127.0.0.1:{port}", PATIENCE_SECONDS)


async def test_a_gateway_that_does_not_come_is_not_waited_for_long() -> None:
    assert not await gateway_ready("127.0.0.1:1", 0.0)


async def test_it_waits_for_the_drafter() -> None:
    fake = FakeVerifier()
    async with running_verifier(fake) as address:
        first = await describe(address, 0.0)
        assert not isinstance(first, str)
        assert not first.HasField("drafter")
        found = asyncio.create_task(describe(address, PATIENCE_SECONDS))
        await asyncio.sleep(0.3)
        assert not found.done()
        fake.description.drafter.method = "dflash"
        second = await found
        assert not isinstance(second, str)
        assert second.drafter.method == "dflash"
    assert await describe(address, 0.0) == "UNAVAILABLE"
