"""Prompts in, the target's own answers out."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from blockdraft_models.precision import cache_dtype, compute_dtype
from blockdraft_models.tokenizer.tokenizer import load_tokenizer
from blockdraft_models.weights.loading import load_checkpoint_config, load_decoder
from blockdraft_models.weights.resolve import resolve_target
from blockdraft_training.corpus.contamination import ExcludedTexts, read_excluded
from blockdraft_training.corpus.conversations import Conversation, answered, begun
from blockdraft_training.corpus.progress import show_answers
from blockdraft_training.corpus.prompts import read_prompts, select
from blockdraft_training.corpus.requests import answer_requests
from blockdraft_training.corpus.rows import CorpusManifest, CorpusRow, manifest_path
from blockdraft_training.corpus.self_chat import (
    made_up_messages,
    made_up_prompts,
    self_chat_path,
)
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
        dropped: Messages not answered, by reason: `excluded`, they occur in a test set;
            `duplicate`, another prompt has the same text; `too_long`, with all before; `unusable`,
            made up, but empty or without an end.
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
            rows_before, tokens_before = len(writer.rows), writer.response_tokens
            made_up = made_up_prompts(settings, self._tokenizer, self._make_up)
            usable = [prompt for prompt in made_up if prompt.text]
            selection = select([*prompts, *usable], excluded)
            dropped = Counter(
                excluded=selection.excluded,
                duplicate=selection.duplicates,
                too_long=0,
                unusable=len(made_up) - len(usable),
            )
            conversations = begun(selection.prompts)
            seconds = self._answer(conversations, writer, dropped)
            for _ in range(1, settings.turns):
                conversations = self._gone_on(conversations, writer, excluded, dropped)
                seconds += self._answer(conversations, writer, dropped)
        new_tokens = writer.response_tokens - tokens_before
        return CorpusSummary(
            path=settings.output,
            rows=len(writer.rows),
            new_rows=len(writer.rows) - rows_before,
            response_tokens=writer.response_tokens,
            tokens_per_second=new_tokens / seconds if seconds else 0.0,
            dropped=dict(dropped),
        )

    def _gone_on(
        self,
        conversations: Sequence[Conversation],
        writer: CorpusWriter,
        excluded: ExcludedTexts,
        dropped: Counter[str],
    ) -> list[Conversation]:
        """Return those that were answered to the end, with what the user says next."""
        heard = answered(conversations, writer.rows, self._tokenizer)
        asked = [each.then(each.prompt.turns[each.turn]) for each in heard if not _at_end(each)]
        silent = [each for each in heard if _at_end(each)]
        said = made_up_messages(self._settings, silent, self._tokenizer, self._make_up)
        for each, text in zip(silent, said, strict=True):
            if text:
                asked.append(each.then(text))
            else:
                dropped["unusable"] += 1
        kept = [each for each in asked if each.said[-1] not in excluded]
        dropped["excluded"] += len(asked) - len(kept)
        return kept

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
        with self._show_progress("prompts", len(requests)) as done:
            for answer in self._generator.generate(requests):
                done(len(answer.token_ids))
                yield answer

    def _answer(
        self, conversations: Sequence[Conversation], writer: CorpusWriter, dropped: Counter[str]
    ) -> float:
        """Write the rows that are not there yet; return the seconds that it took."""
        requests, too_long = answer_requests(self._settings, self._tokenizer, conversations)
        dropped["too_long"] += too_long
        for request in requests:
            earlier = writer.rows.get(request.id)
            if earlier is not None and earlier.prompt != request.prompt:
                raise CorpusError(
                    f"{self._settings.output} has another prompt under the id {request.id}"
                )
        new = [request for request in requests if request.id not in writer.rows]
        if not new:
            return 0.0
        source = {each.row_id: each.prompt.source for each in conversations}
        self._generator.prepare(new)
        started = time.perf_counter()
        with self._show_progress("answers", len(new)) as done:
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
                done(len(answer.token_ids))
        return time.perf_counter() - started


def _at_end(conversation: Conversation) -> bool:
    """Whether the user's next message is not in the prompt file."""
    return conversation.turn >= len(conversation.prompt.turns)
