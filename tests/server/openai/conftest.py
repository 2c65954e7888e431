from collections.abc import AsyncIterator

import aiohttp
import pytest
from tests.fakes.verifier import FakeVerifier
from tests.patience import PATIENCE_SECONDS
from tests.server.openai.asking import HERE
from tests.server.support import Running, serving


@pytest.fixture
async def server(verifier: FakeVerifier) -> AsyncIterator[Running]:
    async with serving(verifier, openai=HERE) as running:
        yield running


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    timeout = aiohttp.ClientTimeout(PATIENCE_SECONDS)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        yield session
