"""A fake server, and both clients connected to it."""

from collections.abc import AsyncIterator, Iterator

import pytest
from tests.client.api import Api
from tests.fakes.inference import FakeInference, RunningFake, running_fake


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ADDRESS", "TARGET", "API_KEY", "CA_CERT"):
        monkeypatch.delenv(f"BLOCKDRAFT_{name}", raising=False)


@pytest.fixture
def fake() -> Iterator[RunningFake]:
    with running_fake() as running:
        yield running


@pytest.fixture
def service(fake: RunningFake) -> FakeInference:
    return fake.service


@pytest.fixture(params=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> str:
    value: str = request.param
    return value


@pytest.fixture
async def api(kind: str, fake: RunningFake) -> AsyncIterator[Api]:
    async with Api(kind, fake.target) as api:
        yield api
