"""The playground beside OpenAI's API: its files, and what it may load."""

import re
from importlib import resources

import aiohttp
import pytest
from tests.fakes.verifier import FakeVerifier
from tests.server.openai.asking import HERE, url
from tests.server.support import Running, serving

FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/playground.css": ("playground.css", "text/css; charset=utf-8"),
    "/playground.js": ("playground.js", "text/javascript; charset=utf-8"),
}


@pytest.mark.parametrize("path", FILES)
async def test_a_file_loads_nothing_from_elsewhere(
    http: aiohttp.ClientSession, server: Running, path: str
) -> None:
    name, content_type = FILES[path]
    async with http.get(url(server, path)) as response:
        text = await response.text()
        assert (response.status, response.headers["Content-Type"]) == (200, content_type)
        policy = response.headers["Content-Security-Policy"]
    assert text == (resources.files("blockdraft_server") / "playground" / name).read_text()
    assert "default-src 'none'" in policy
    assert "'unsafe" not in policy
    assert "http" not in policy
    assert not re.search(r"https?://|//[a-z]+\.[a-z]|innerHTML", text)


async def test_strangers_do_not_see_it(http: aiohttp.ClientSession, server: Running) -> None:
    async with http.get(url(server, "/"), headers={"Host": "elsewhere.example"}) as response:
        assert response.status == 403


async def test_a_server_can_do_without(http: aiohttp.ClientSession, verifier: FakeVerifier) -> None:
    async with (
        serving(verifier, openai=HERE, playground=False) as running,
        http.get(url(running, "/")) as response,
    ):
        assert response.status == 404
