"""Context length and pages: as asked, or as the model and the memory allow."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockdraft_models.diffusion import MaskDiffusion, NoiseDiffusion
from blockdraft_runtime.settings.verifier import CacheSettings, EngineSettings, SchedulerSettings
from blockdraft_verifier.device.sizes import for_canvases, page_size_on_tpu, sized

PAGE_BYTES = 1000
ENGINE = EngineSettings()
SEQUENCES = ENGINE.scheduler.max_sequences


def sizes(asked: CacheSettings, budget_bytes: int = 0, model_limit: int = 64) -> tuple[int, int]:
    found = sized(
        ENGINE, asked, model_limit=model_limit, page_bytes=PAGE_BYTES, budget_bytes=budget_bytes
    )
    return found.scheduler.max_context_tokens, found.num_pages


def test_without_a_word_every_sequence_may_be_as_long_as_the_model_allows() -> None:
    assert sizes(CacheSettings(), 10**9) == (64, SEQUENCES * 4)


def test_little_memory_makes_fewer_pages_and_then_shorter_sequences() -> None:
    assert sizes(CacheSettings(), 10 * PAGE_BYTES) == (64, 10)
    assert sizes(CacheSettings(), 4 * PAGE_BYTES) == (64, 4)
    assert sizes(CacheSettings(), 4 * PAGE_BYTES - 1) == (48, 3)


def test_a_size_that_is_asked_for_is_taken_whole() -> None:
    # More than all sequences need: prompts that have ended stay in the prefix cache.
    assert sizes(CacheSettings(kv_cache_bytes=10**6)) == (64, 1000)
    assert sizes(CacheSettings(max_model_len=17, num_pages=2)) == (17, 2)


@pytest.mark.parametrize(
    ("sequences", "tokens", "page_size"),
    # A table of 512 KiB has 2,048 pages for each of 64 sequences.
    [
        *((64, 32_768, 16), (64, 32_769, 32), (64, 131_072, 64), (64, 1 << 20, 512)),
        # Of 33 sequences a step has as many rows.
        *((16, 131_072, 16), (33, 32_768, 16), (33, 32_769, 32)),
    ],
)
def test_pages_of_a_tpu_grow_until_their_table_fits(
    sequences: int, tokens: int, page_size: int
) -> None:
    assert page_size_on_tpu(16, sequences, tokens) == page_size
    # What is larger already stays.
    assert page_size_on_tpu(1024, sequences, tokens) == 1024


def test_a_page_table_that_never_fits_is_refused() -> None:
    with pytest.raises(ValueError, match=r"more than 512 KiB .* pages of 512 tokens: lower"):
        page_size_on_tpu(16, 64, (1 << 20) + 1)


@pytest.mark.parametrize(
    ("asked", "budget_bytes", "words"),
    [
        (CacheSettings(max_model_len=65), 10**9, "more than the 64 tokens the model was made for"),
        (CacheSettings(max_model_len=64, num_pages=3), 10**9, "holds 48 tokens"),
        (CacheSettings(max_model_len=64), 3 * PAGE_BYTES, "lower --max-model-len or raise"),
        (CacheSettings(), PAGE_BYTES - 1, "holds 0 tokens"),
    ],
)
def test_what_does_not_fit_is_refused(asked: CacheSettings, budget_bytes: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        sizes(asked, budget_bytes)


@given(
    limit=st.integers(1, 5000),
    budget=st.integers(0, 10**6),
    wanted=st.none() | st.integers(1, 5000),
)
def test_one_sequence_of_full_length_always_fits(
    limit: int, budget: int, wanted: int | None
) -> None:
    try:
        length, pages = sizes(CacheSettings(max_model_len=wanted), budget, limit)
    except ValueError:
        return
    assert 1 <= length <= min(limit, wanted or limit)
    assert length <= pages * ENGINE.page_size
    assert pages * PAGE_BYTES <= budget


def test_two_sizes_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="exclude each other"):
        CacheSettings(kv_cache_bytes=1, num_pages=1)


def test_pages_and_steps_hold_canvases() -> None:
    settings = EngineSettings(page_size=16, scheduler=SchedulerSettings(max_step_tokens=64))
    masks, noise = MaskDiffusion(32, 8, 0, 0.9), NoiseDiffusion(256, 1000)
    of_masks = for_canvases(settings, masks)
    assert (of_masks.page_size, of_masks.scheduler.max_step_tokens) == (32, 96)
    of_noise = for_canvases(settings, noise)
    assert (of_noise.page_size, of_noise.scheduler.max_step_tokens) == (16, 257)
    # What is large enough stays.
    assert for_canvases(of_masks, masks) == of_masks
    assert for_canvases(settings, MaskDiffusion(4, 4, 0, 0.9)) == settings
