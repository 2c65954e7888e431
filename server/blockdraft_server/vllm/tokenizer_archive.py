"""The files of the target's tokenizer as one archive, made once, on a thread."""

import asyncio
import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DescribedTokenizer:
    """Facts about a model that gateways ask for, beside its tokenizer's files."""

    model_type: str
    architectures: tuple[str, ...]
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None


class TokenizerArchive:
    """Reads a target's files when they are first asked for."""

    def __init__(self, target: str) -> None:
        """Read nothing yet."""
        self._target = target
        self._reading: asyncio.Task[tuple[bytes, str, DescribedTokenizer]] | None = None

    async def zipped(self) -> tuple[bytes, str]:
        """Return the archive, and the SHA-256 of it in hexadecimal."""
        data, digest, _ = await self._read()
        return data, digest

    async def described(self) -> DescribedTokenizer:
        """Return the facts about the model that its files hold."""
        return (await self._read())[2]

    async def _read(self) -> tuple[bytes, str, DescribedTokenizer]:
        if self._reading is None or (self._reading.done() and self._reading.exception()):
            self._reading = asyncio.create_task(asyncio.to_thread(_archive, self._target))
        # A caller that goes away must not end what others wait for.
        return await asyncio.shield(self._reading)


def _archive(target: str) -> tuple[bytes, str, DescribedTokenizer]:
    # Imported here: reading a checkpoint's tokenizer takes libraries that tests do without.
    from blockdraft_models.tokenizer.published import published_files
    from blockdraft_models.weights.resolve import resolve_target

    files = published_files(resolve_target(target))
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in sorted(files.items()):
            # With one date for all: the same files are the same archive.
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), content)
    packed = data.getvalue()
    return packed, hashlib.sha256(packed).hexdigest(), _described(files)


def _described(files: Mapping[str, bytes]) -> DescribedTokenizer:
    # As when they are served: the second has the last word.
    config = {
        **json.loads(files.get("config.json", b"{}")),
        **json.loads(files.get("generation_config.json", b"{}")),
    }
    ids = config.get("eos_token_id")
    eos = ids if isinstance(ids, list) else [] if ids is None else [ids]
    return DescribedTokenizer(
        model_type=str(config.get("model_type", "")),
        architectures=tuple(config.get("architectures") or ()),
        eos_token_ids=tuple(eos),
        bos_token_id=config.get("bos_token_id"),
    )
