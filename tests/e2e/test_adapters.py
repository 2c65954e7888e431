"""`blockdraft serve --adapters`, as clients of OpenAI and our own name the adapters."""

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from tests.e2e.openai_service import PLAIN, READY_SECONDS, TEXT, Service, running_service
from tests.models.adapters import write_adapter
from tests.verifier.support import CONFIG

from blockdraft_client import Client, NotFoundError, SamplingParams


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder: Path = tmp_path_factory.mktemp("adapters")
    for seed, name in enumerate(("sql", "verse")):
        write_adapter(folder / name, CONFIG, 4, seed)
    flags = f"--adapters {folder}"
    with running_service(tmp_path_factory.mktemp("service"), flags=flags) as running:
        yield running


def test_models_are_the_target_and_its_adapters(service: Service) -> None:
    with openai.OpenAI(base_url=f"{service.http}/v1", api_key="none", max_retries=0) as client:
        listed = {model.id: getattr(model, "parent", None) for model in client.models.list()}
        assert listed == {"tiny": None, "tiny:sql": "tiny", "tiny:verse": "tiny"}
        assert client.models.retrieve("tiny:verse").id == "tiny:verse"
        texts = {}
        for model in ("tiny", "tiny:sql", "sql", "verse"):
            completion = client.completions.create(
                model=model, prompt=TEXT, max_tokens=24, temperature=0
            )
            assert completion.model == model
            texts[model] = completion.choices[0].text
        assert texts["tiny:sql"] == texts["sql"]
        assert len(set(texts.values())) == 3
        with pytest.raises(openai.NotFoundError, match="'tiny:other' is not served here"):
            client.completions.create(model="tiny:other", prompt=TEXT)


def test_drafts_change_no_adapters_completion(service: Service) -> None:
    with Client(service.grpc, timeout=READY_SECONDS) as client:
        assert client.model("tiny:sql").adapters == ("sql", "verse")
        for name in ("", "tiny:sql", "tiny:verse"):
            for temperature in (0.0, 1.0):
                options = SamplingParams(max_tokens=32, temperature=temperature, seed=3)
                drafted = client.generate(TEXT, model=name, sampling=options)
                plain = client.generate(TEXT, model=name, sampling=options, speculation=PLAIN)
                assert drafted.token_ids == plain.token_ids
                assert drafted.model == (name or "tiny")
        with pytest.raises(NotFoundError):
            client.tokenize(TEXT, model="other")
