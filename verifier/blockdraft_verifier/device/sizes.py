"""How long sequences may be and how many pages there are, from the model and the memory."""

from dataclasses import replace

from blockdraft_runtime.settings.process import Size, size_text
from blockdraft_runtime.settings.verifier import CacheSettings, EngineSettings

_MIB = 1 << 20


def sized(
    settings: EngineSettings,
    asked: CacheSettings,
    *,
    model_limit: int,
    page_bytes: int,
    budget_bytes: int,
) -> EngineSettings:
    """Return the settings with context length and pages: as asked, or else as memory allows.

    A model was made for sequences of `model_limit` tokens. A page takes `page_bytes` of a device,
    which has `budget_bytes` for the cache where no size was asked for.

    `ValueError` if what was asked for does not go together.
    """
    most = asked.max_model_len or model_limit
    if most > model_limit:
        raise ValueError(
            f"--max-model-len {most} is more than the {model_limit} tokens the model was made for"
        )
    pages_of_one = -(-most // settings.page_size)
    pages = asked.num_pages
    if pages is None and asked.kv_cache_bytes is not None:
        pages = asked.kv_cache_bytes // page_bytes
    elif pages is None:
        pages = min(budget_bytes // page_bytes, settings.scheduler.max_sequences * pages_of_one)
    if pages < pages_of_one and asked.max_model_len is None:
        most = pages * settings.page_size
    if pages == 0 or pages * settings.page_size < most:
        needed = Size(-(-pages_of_one * page_bytes // _MIB) * _MIB)
        raise ValueError(
            f"the KV cache of {size_text(pages * page_bytes)} holds {pages * settings.page_size} "
            f"tokens, and a sequence may have {asked.max_model_len or model_limit}: lower "
            f"--max-model-len or raise --kv-cache-memory to {needed}"
        )
    scheduler = replace(settings.scheduler, max_context_tokens=most)
    return replace(settings, scheduler=scheduler, num_pages=pages)
