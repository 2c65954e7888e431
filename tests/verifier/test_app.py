"""Starts of a verifier: each says about how long it will take, as the last one took."""

import asyncio
import json
import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from tests.models.tiny import write_hf_checkpoint
from tests.verifier.support import TINY_ENGINE, tiny_decoder

from blockdraft_models.kept_programs import KeptPrograms
from blockdraft_runtime.settings.verifier import CacheSettings, VerifierSettings
from blockdraft_verifier import app as app_module
from blockdraft_verifier.app import VerifierApp

STAGES = {"starting", "loading weights", "compiling steps", "measuring steps"}


@pytest.mark.usefixtures("jax_keeps_nothing", "own_programs")
def test_a_start_is_estimated_at_once_by_the_last_of_its_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_hf_checkpoint(tiny_decoder(), tmp_path / "target")
    kept = KeptPrograms(tmp_path / "programs", "blockdraft_verifier")
    cache = CacheSettings(max_model_len=96, num_pages=64)
    settings = VerifierSettings(str(tmp_path / "target"), None, cache, TINY_ENGINE)

    def words_of_a_start() -> list[str]:
        monkeypatch.setattr(app_module, "REGISTRY", CollectorRegistry())
        words: list[str] = []

        async def start() -> None:
            app = VerifierApp(settings, asyncio.Event(), kept_programs=kept)
            monkeypatch.setattr(
                app_module, "report_compiled", lambda *_: words.append(str(app.inspect()["words"]))
            )
            await app.start()
            await app.stop()

        asyncio.run(start())
        return words

    first, _ = words_of_a_start(), words_of_a_start()
    assert first[0].startswith("compiling steps, 1 of ")
    [path] = (kept.folder / "starts").iterdir()
    record = json.loads(path.read_bytes())
    assert set(record["cold"]) == set(record["warm"]) == STAGES
    record["warm"]["measuring steps"] = 5000.0
    path.write_text(json.dumps(record))
    lefts = [re.search(r", about (\d+) s$", words) for words in words_of_a_start()]
    assert all(left is not None and int(left[1]) > 4000 for left in lefts)
