"""What is nearly HTTP is answered or cut, and no log has the keys or the texts in it."""

import logging

import pytest
from tests.fakes.verifier import FakeVerifier
from tests.server.openai.asking import HERE, url
from tests.server.support import serving
from tools.fuzz import sockets

REQUESTS = 300


async def test_neither_keys_nor_prompts_are_logged_with_what_is_nearly_http(
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr(sockets, "_PATIENCE_SECONDS", 0.1)
    async with serving(FakeVerifier(), openai=HERE, api_keys=[sockets.KEY]) as server:
        host, _, port = url(server, "").removeprefix("http://").rpartition(":")
        endings = await sockets.fuzz(host, int(port), REQUESTS, 1)
        assert endings["200"]
        assert endings["400"]
    assert not endings["500"]
    assert "Error handling request" in caplog.text
    assert not sockets.leaks((caplog.text + "".join(capfd.readouterr())).encode())


def test_secrets_are_found_however_their_bytes_are_written() -> None:
    key = sockets.KEY.encode()
    for written in (key, key.hex().encode(), str(list(key)).encode()):
        assert sockets.leaks(b"line\n" + written) == [sockets.KEY]
