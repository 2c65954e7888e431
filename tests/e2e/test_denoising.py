"""`blockdraft serve` of a target that denoises: whole canvases, the same after a death."""

from collections.abc import Iterator

import openai
import pytest
from flax import nnx
from tests.e2e.openai_service import READY_SECONDS, TEXT, Service, running_service
from tests.models.tiny import tiny_config

from blockdraft_client import Client, SamplingParams
from blockdraft_models.decoder.model import Decoder

CANVAS_TOKENS = 4


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    target = Decoder(tiny_config("qwen3", num_layers=2), rngs=nnx.Rngs(3))
    config = {"model_type": "sdar", "block_size": CANVAS_TOKENS, "mask_token_id": 259}
    folder = tmp_path_factory.mktemp("service")
    with running_service(folder, target=target, drafter="auto", config=config) as running:
        assert "takes no drafter" in (folder / "log").read_text()
        yield running


def test_tokens_come_by_canvases_and_survive_the_verifier(service: Service) -> None:
    options = SamplingParams(max_tokens=120, temperature=0.8, seed=5, ignore_eos=True)
    with Client(service.grpc, timeout=READY_SECONDS) as client:
        assert client.model().drafting.reason == "the target denoises 4 tokens at a time"
        whole = client.generate(TEXT, sampling=options)
        assert len(whole.token_ids) == 120
        # One to four for each of 31 canvases.
        assert 31 <= whole.usage.denoising_steps <= 124
        received: list[int] = []
        for event in client.stream(TEXT, sampling=options):
            if not received:
                service.child("verifier").kill()
            received += event.token_ids
        assert received == list(whole.token_ids)


def test_what_needs_tokens_in_order_is_refused(service: Service) -> None:
    with openai.OpenAI(base_url=f"{service.http}/v1", api_key="none", max_retries=0) as client:
        with pytest.raises(openai.BadRequestError, match="frequency_penalty is not possible"):
            client.completions.create(model="tiny", prompt=TEXT, frequency_penalty=1)
        with pytest.raises(openai.BadRequestError, match="response_format is not possible"):
            client.chat.completions.create(
                model="tiny",
                messages=[{"role": "user", "content": TEXT}],
                response_format={"type": "json_object"},
            )
        completion = client.completions.create(
            model="tiny", prompt=TEXT, max_tokens=9, logit_bias={"65": 100}
        )
        assert completion.choices[0].text == "A" * 9
