"""Prompts in, the target's own completions out."""

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from blockdraft_models.precision import cache_dtype, compute_dtype
from blockdraft_models.tokenizer.tokenizer import load_tokenizer
from blockdraft_models.weights.loading import load_checkpoint_config, load_decoder
from blockdraft_models.weights.resolve import resolve_target
from blockdraft_training.corpus.conversations import (
    Conversation,
    SelfChat,
    answered,
    completion_requests,
    self_chat_path,
)
from blockdraft_training.corpus.generator import (
    BatchGenerator,
    BatchShape,
    FinishedCompletion,
    Request,
)
from blockdraft_training.corpus.prompts import ExcludedTexts, read_excluded, read_prompts, select
from blockdraft_training.corpus.rows import CorpusManifest, CorpusRow, CorpusWriter, manifest_path
from blockdraft_training.errors import CorpusError
from blockdraft_training.settings import CorpusSettings

_TERMINAL_SECONDS = 2.0
# Without a terminal, the log should grow slowly.
_LOG_SECONDS = 60.0

# Given a title and the number of rows, yields a callback for the tokens of each finished row.
ShowProgress = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]


@dataclass(frozen=True, slots=True)
class CorpusSummary:
    """The result of a run."""

    path: Path  # the corpus
    rows: int  # rows it has now
    new_rows: int  # rows written by this run
    response_tokens: int  # tokens of all completions it has now
    tokens_per_second: float  # tokens of the new completions by the time that answering took
    # Messages not answered, by reason: `excluded`, they occur in a test set; `duplicate`, another
    # prompt has the same text; `too_long`, with all before; `unusable`, made up, but empty or
    # without an end.
    dropped: dict[str, int]

    def to_json(self) -> dict[str, Any]:
        """Return the summary as a JSON object."""
        return {**asdict(self), "path": str(self.path)}


@contextmanager
def show_completions(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """Report on stderr, now and then, the finished rows, the speed and the seconds left."""
    pause = _TERMINAL_SECONDS if sys.stderr.isatty() else _LOG_SECONDS
    started = reported = time.monotonic()
    tokens = rows = 0

    def advance(count: int) -> None:
        nonlocal tokens, rows, reported
        tokens, rows, now = tokens + count, rows + 1, time.monotonic()
        if now - reported >= pause:
            reported = now
            speed, left = tokens / (now - started), (now - started) * (total - rows) / rows
            print(
                f"{title}: {rows} of {total} rows, {speed:.0f} tokens/s, {left:.0f} s left",
                file=sys.stderr,
            )

    yield advance


class CorpusMaker:
    """Lets one target answer prompts; `make` may be called again to go on."""

    def __init__(
        self, settings: CorpusSettings, show_progress: ShowProgress = show_completions
    ) -> None:
        """Find the target; its weights are loaded when the first prompt needs them."""
        self._settings, self._show_progress = settings, show_progress
        self._checkpoint = load_checkpoint_config(resolve_target(settings.target))
        self._tokenizer = load_tokenizer(self._checkpoint.path)
        self._self_chat = SelfChat(settings, self._tokenizer, self._make_up)
        self._dtype = compute_dtype(settings.dtype)
        longest = settings.max_prompt_tokens + settings.max_tokens
        context = self._checkpoint.config.max_position_embeddings
        if longest > context:
            raise ValueError(
                f"prompt and completion may have {longest} tokens, the target {context}"
            )

    def make(self) -> CorpusSummary:
        """Answer every prompt that has no completion yet."""
        settings = self._settings
        excluded = read_excluded(settings.exclude)
        prompts = [prompt for file in settings.prompts for prompt in read_prompts(file)]
        dropped: Counter[str] = Counter(excluded=0, duplicate=0, too_long=0, unusable=0)
        with self._open(excluded) as writer:
            rows_before, tokens_before = len(writer.rows), writer.response_tokens
            made_up = self._self_chat.prompts()
            usable = [prompt for prompt in made_up if prompt.text]
            dropped["unusable"] += len(made_up) - len(usable)
            selected = select([*prompts, *usable], excluded, dropped)
            conversations = [Conversation(prompt, prompt.turns[:1]) for prompt in selected]
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
        """Return the conversations that were answered to the end, with the user's next message."""
        heard = answered(conversations, writer.rows, self._tokenizer)
        unanswered = [
            conversation.then(conversation.prompt.turns[conversation.turn])
            for conversation in heard
            if not _at_end(conversation)
        ]
        silent = [conversation for conversation in heard if _at_end(conversation)]
        for conversation, text in zip(silent, self._self_chat.messages(silent), strict=True):
            if text:
                unanswered.append(conversation.then(text))
            else:
                dropped["unusable"] += 1
        allowed = [
            conversation for conversation in unanswered if conversation.texts[-1] not in excluded
        ]
        dropped["excluded"] += len(unanswered) - len(allowed)
        return allowed

    @cached_property
    def _generator(self) -> BatchGenerator:
        settings = self._settings
        decoder, _ = load_decoder(self._checkpoint.path, dtype=self._dtype, weights="stored")
        shape = BatchShape(settings.batch_size, settings.max_prompt_tokens, settings.max_tokens)
        end_ids = self._tokenizer.eos_token_ids
        return BatchGenerator(decoder, shape, end_ids, dtype=cache_dtype(self._dtype))

    def _open(self, excluded: ExcludedTexts) -> CorpusWriter:
        settings, checkpoint = self._settings, self._checkpoint
        left_over = self_chat_path(settings.output)
        if left_over.exists() and not manifest_path(settings.output).exists():
            raise CorpusError(f"{left_over} belongs to a corpus that is gone: remove it")
        # The settings that every row depends on. Number of prompts, turns, limit and batch size
        # are not among them: a corpus may grow.
        sampling = {
            "greedy_share": settings.greedy_share,
            "temperature": settings.temperature,
            "seed": settings.seed,
            "max_tokens": settings.max_tokens,
            "max_prompt_tokens": settings.max_prompt_tokens,
            "openings": list(settings.openings),
            "dtype": self._dtype.name,
            "excluded": {"texts": len(excluded), "digest": excluded.digest},
        }
        manifest = CorpusManifest(
            target_name=checkpoint.config.name,
            target_fingerprint=checkpoint.fingerprint,
            vocab_size=checkpoint.config.vocab_size,
            prompts=(),
            sampling=sampling,
            rows=0,
            response_tokens=0,
        )
        return CorpusWriter(settings.output, manifest, settings.licence)

    def _make_up(self, requests: Sequence[Request]) -> Iterator[FinishedCompletion]:
        if not requests:
            return
        self._generator.prepare(requests)
        with self._show_progress("prompts", len(requests)) as advance:
            for completion in self._generator.generate(requests):
                advance(len(completion.token_ids))
                yield completion

    def _answer(
        self, conversations: Sequence[Conversation], writer: CorpusWriter, dropped: Counter[str]
    ) -> float:
        """Write the missing rows; return the seconds that answering took."""
        requests, too_long = completion_requests(self._settings, self._tokenizer, conversations)
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
        source = {conversation.row_id: conversation.prompt.source for conversation in conversations}
        self._generator.prepare(new)
        started = time.perf_counter()
        with self._show_progress("completions", len(new)) as advance:
            for completion in self._generator.generate(new):
                request = completion.request
                writer.append(
                    CorpusRow(
                        id=request.id,
                        source=source[request.id],
                        temperature=request.temperature,
                        prompt=request.prompt,
                        response=completion.token_ids,
                        seed=request.seed,
                    )
                )
                advance(len(completion.token_ids))
        return time.perf_counter() - started


def _at_end(conversation: Conversation) -> bool:
    """Return whether the prompt file lacks the user's next message."""
    return conversation.turn >= len(conversation.prompt.turns)
