"""Prompts in, the target's own answers out."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from blockdraft_models.decoder.dtypes import cache_dtype, compute_dtype
from blockdraft_models.tokenizer.tokenizer import load_tokenizer
from blockdraft_models.weights.loading import load_checkpoint_config, load_decoder
from blockdraft_models.weights.resolve import resolve_target
from blockdraft_training.corpus.contamination import ExcludedTexts, read_excluded
from blockdraft_training.corpus.progress import show_answers
from blockdraft_training.corpus.prompts import Prompt, read_prompts, select
from blockdraft_training.corpus.requests import answer_requests
from blockdraft_training.corpus.rows import CorpusManifest, CorpusRow, manifest_path
from blockdraft_training.corpus.self_chat import made_up_prompts, self_chat_path
from blockdraft_training.corpus.settings import CorpusSettings
from blockdraft_training.corpus.writer import CorpusWriter
from blockdraft_training.errors import CorpusError
from blockdraft_training.generation.generator import Answer, BatchGenerator, BatchShape, Request

ShowProgress = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]


@dataclass(frozen=True, slots=True)
class CorpusSummary:
    """What was made.

    Attributes:
        path: The corpus.
        rows: Rows it has now.
        new_rows: Rows written by this run.
        response_tokens: Tokens of all answers it has now.
        tokens_per_second: Tokens of the new answers by the time that answering took.
        dropped: Prompts not answered, by reason: `excluded`, they occur in a test set;
            `duplicate`, another has the same text; `too_long`; `unusable`, made up, but empty or
            without an end.
    """

    path: Path
    rows: int
    new_rows: int
    response_tokens: int
    tokens_per_second: float
    dropped: dict[str, int]

    def to_json(self) -> dict[str, Any]:
        """Return the summary as a JSON object."""
        return {**asdict(self), "path": str(self.path)}


class CorpusMaker:
    """Lets one target answer prompts; `make` may be called again to go on."""

    def __init__(
        self, settings: CorpusSettings, show_progress: ShowProgress = show_answers
    ) -> None:
        """Find the target; its weights are loaded when the first prompt needs them.

        Raises:
            ModelError: If the target or its tokenizer cannot be loaded.
            ValueError: If the target's context is too short.
        """
        self._settings, self._show_progress = settings, show_progress
        self._checkpoint = load_checkpoint_config(resolve_target(settings.target))
        self._tokenizer = load_tokenizer(self._checkpoint.path)
        self._dtype = compute_dtype(settings.dtype)
        longest = settings.max_prompt_tokens + settings.max_tokens
        context = self._checkpoint.config.max_position_embeddings
        if longest > context:
            raise ValueError(f"prompt and answer may have {longest} tokens, the target {context}")

    def make(self) -> CorpusSummary:
        """Answer every prompt that has no answer yet.

        Raises:
            CorpusError: If prompts are damaged, the corpus was begun with other settings, or it
                cannot be written.
            ValueError: If the chat template cannot be used.
        """
        settings = self._settings
        excluded = read_excluded(settings.exclude)
        prompts = [prompt for file in settings.prompts for prompt in read_prompts(file)]
        with self._open(excluded) as writer:
            made_up = made_up_prompts(settings, self._tokenizer, self._make_up)
            usable = [prompt for prompt in made_up if prompt.text]
            selection = select([*prompts, *usable], excluded)
            requests, too_long = answer_requests(settings, self._tokenizer, selection.prompts)
            new_rows, speed = self._answer(requests, selection.prompts, writer)
        return CorpusSummary(
            path=settings.output,
            rows=len(writer.prompts),
            new_rows=new_rows,
            response_tokens=writer.response_tokens,
            tokens_per_second=speed,
            dropped={
                "excluded": selection.excluded,
                "duplicate": selection.duplicates,
                "too_long": too_long,
                "unusable": len(made_up) - len(usable),
            },
        )

    @cached_property
    def _generator(self) -> BatchGenerator:
        settings = self._settings
        decoder, _ = load_decoder(self._checkpoint.path, dtype=self._dtype)
        shape = BatchShape(settings.batch_size, settings.max_prompt_tokens, settings.max_tokens)
        end_ids = self._tokenizer.eos_token_ids
        return BatchGenerator(decoder, shape, end_ids, dtype=cache_dtype(self._dtype))

    def _open(self, excluded: ExcludedTexts) -> CorpusWriter:
        output, checkpoint = self._settings.output, self._checkpoint
        left_over = self_chat_path(output)
        if left_over.exists() and not manifest_path(output).exists():
            raise CorpusError(f"{left_over} belongs to a corpus that is gone: remove it")
        manifest = CorpusManifest(
            target_name=checkpoint.config.name,
            target_fingerprint=checkpoint.fingerprint,
            vocab_size=checkpoint.config.vocab_size,
            prompts=(),
            sampling=self._settings.sampling(dtype=self._dtype.name, excluded=excluded),
            rows=0,
            response_tokens=0,
        )
        return CorpusWriter(output, manifest, self._settings.licence)

    def _make_up(self, requests: Sequence[Request]) -> Iterator[Answer]:
        if not requests:
            return
        self._generator.prepare(requests)
        with self._show_progress("prompts", len(requests)) as answered:
            for answer in self._generator.generate(requests):
                answered(len(answer.token_ids))
                yield answer

    def _answer(
        self, requests: Sequence[Request], prompts: Sequence[Prompt], writer: CorpusWriter
    ) -> tuple[int, float]:
        """Write the rows that are not there yet; return how many, and tokens per second."""
        for request in requests:
            if writer.prompts.get(request.id, request.prompt) != request.prompt:
                raise CorpusError(
                    f"{self._settings.output} has another prompt under the id {request.id}"
                )
        new = [request for request in requests if request.id not in writer.prompts]
        if not new:
            return 0, 0.0
        source = {prompt.id: prompt.source for prompt in prompts}
        self._generator.prepare(new)
        started, before = time.perf_counter(), writer.response_tokens
        with self._show_progress("answers", len(new)) as answered:
            for answer in self._generator.generate(new):
                asked = answer.request
                writer.append(
                    CorpusRow(
                        id=asked.id,
                        source=source[asked.id],
                        temperature=asked.temperature,
                        prompt=asked.prompt,
                        response=answer.token_ids,
                        seed=asked.seed,
                    )
                )
                answered(len(answer.token_ids))
        seconds = time.perf_counter() - started
        return len(new), (writer.response_tokens - before) / seconds
