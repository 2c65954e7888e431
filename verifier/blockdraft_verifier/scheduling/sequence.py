"""A request and the sequence it becomes: plain data and the arithmetic of its lengths.

Vocabulary (all lengths in tokens):

* `tokens`: prompt, then everything generated. The last one is the **anchor** once the rest is
  committed.
* `committed`: how many leading tokens have final K/V and features. While decoding it is
  `len(tokens) - 1`: everything but the anchor.
* `draft`: tokens drafted to follow the anchor, not yet verified.
"""

import enum
from array import array
from collections import Counter, deque
from collections.abc import MutableSequence, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from llguidance import LLMatcher

from blockdraft_models.diffusion import Diffusion
from blockdraft_models.sampling_options import (
    GREEDY,
    NO_RULES,
    LogitsRules,
    OutputOptions,
    Sampling,
)
from blockdraft_verifier.scheduling.canvas import Canvas
from blockdraft_verifier.scheduling.grammar import Grammar
from blockdraft_verifier.scheduling.token_masks import TokenMasks

RECYCLED_CHOICES = 16
"""Most of the target's choices after rejected tokens that are kept of a sequence."""


class FinishReason(enum.Enum):
    """The reason why a sequence ended."""

    STOP = "stop"
    LENGTH = "length"
    # The parser of its grammar gave up.
    GRAMMAR_FAILED = "grammar_failed"


@dataclass(frozen=True, slots=True)
class GenerationRequest(OutputOptions):
    """A caller's request, in token ids; its most output tokens include `emitted`."""

    request_id: str  # the caller's name for it, for logs
    prompt: tuple[int, ...]
    emitted: tuple[int, ...] = ()  # tokens an earlier attempt has already delivered
    sampling: Sampling = GREEDY
    rules: LogitsRules = NO_RULES
    masks: TokenMasks | None = None  # the tokens that `rules` and bad words leave; None for all
    # The grammar of the output: compiled and after `emitted`, and as a text.
    grammar: LLMatcher | None = None
    grammar_text: str = ""
    stop_token_ids: frozenset[int] = frozenset()
    # Most tokens to draft per step, None for as many as were compiled for.
    max_draft_tokens: int | None = None
    prompt_lookup: bool = True  # whether earlier text may be looked up for drafts
    replay: bool = False  # whether an earlier attempt broke off
    # Tells tenants apart: pages are shared only with sequences of the same one, and tenants
    # take turns in getting a slot.
    cache_salt: bytes = b""
    background: bool = False  # whether it gives way to all that are not in the background
    recordable: bool = False  # whether it may become a training sample of a drafter that learns
    adapter: int = 0  # number of the target's adapter, from 1; 0 for none


class DraftSource(enum.Enum):
    """The source of a draft."""

    DRAFTER = "drafter"
    PROMPT_LOOKUP = "prompt_lookup"
    GRAMMAR = "grammar"


@dataclass(frozen=True, slots=True)
class Draft:
    """Tokens drafted to follow the anchor of a sequence; `ended_early` if more were asked for."""

    token_ids: tuple[int, ...]
    source: DraftSource = DraftSource.DRAFTER
    ended_early: bool = False


class RecycledChoice(NamedTuple):
    """The target's choice at a position, after a drafted token that was not accepted."""

    position: int
    after: int
    token: int


@dataclass(slots=True)
class Usage:
    """The usage of a sequence so far; times in seconds.

    The tokens that prompt lookup drafted, or the grammar forced, are counted apart as well.
    """

    cached_prompt_tokens: int = 0
    verification_steps: int = 0
    first_step_time: float | None = None
    first_token_time: float | None = None
    last_token_time: float | None = None
    verify_seconds: float = 0.0
    draft_seconds: float = 0.0
    transport_seconds: float = 0.0
    prompt_lookup_drafted: int = 0
    prompt_lookup_accepted: int = 0
    forced: int = 0
    denoising_steps: int = 0
    # How often so many tokens were drafted and so many of them accepted.
    _verified: Counter[tuple[int, int]] = field(default_factory=Counter, init=False)

    def count_verification(self, sources: Sequence[DraftSource], accepted: int) -> None:
        """Count one verification of tokens from these sources; the first `accepted` were right."""
        self.verification_steps += 1
        self.prompt_lookup_drafted += sources.count(DraftSource.PROMPT_LOOKUP)
        self.prompt_lookup_accepted += sources[:accepted].count(DraftSource.PROMPT_LOOKUP)
        self.forced += sources[:accepted].count(DraftSource.GRAMMAR)
        self._verified[len(sources), accepted] += 1

    @property
    def drafted_per_position(self) -> list[int]:
        """How often each position was drafted."""
        return self._count(0)

    @property
    def accepted_per_position(self) -> list[int]:
        """How often each drafted position was accepted."""
        return self._count(1)

    def _count(self, index: int) -> list[int]:
        counts = [0] * max((drafted for drafted, _ in self._verified), default=0)
        for verified, times in self._verified.items():
            for position in range(verified[index]):
                counts[position] += times
        return counts


def no_pages() -> MutableSequence[int]:
    """Return an empty table of pages: 32-bit numbers, copied as a whole into a step's inputs."""
    return array("i")


@dataclass(slots=True, eq=False)
class TokenSequence:
    """The tokens of one request being decoded; only the engine's thread changes it.

    The scheduler advances it. `drafting` sets its drafts and whether it is drafted for, the policy
    its drafts by prompt lookup, and the engine its usage.
    """

    sequence_id: int  # number unique in this process; never reused
    request: GenerationRequest
    arrival_time: float  # seconds of the engine's clock
    tokens: list[int] = field(default_factory=list)
    committed: int = 0
    pages: MutableSequence[int] = field(default_factory=no_pages)
    state_slot: int = 0  # place of its state, in targets that have one
    # Identity of each full committed page's contents and prefix.
    page_hashes: list[bytes] = field(default_factory=list)
    draft: Draft | None = None
    # The latest since the drafter was last asked; `drafting` takes them.
    recycled: deque[RecycledChoice] = field(default_factory=lambda: deque(maxlen=RECYCLED_CHOICES))
    awaiting_draft: bool = False  # whether the drafter is at work on its draft
    draftable: bool = True  # whether drafting for it is possible at all
    names_pages: bool = True  # whether others may take over its pages
    last_turn: int = 0  # number of its last turn; the longest wait is next
    finish_reason: FinishReason | None = None
    grammar: Grammar | None = field(init=False, default=None)  # has consumed the output
    diffusion: Diffusion | None = None  # None if the target decodes token after token
    canvas: Canvas | None = None  # the one that is denoised
    usage: Usage = field(default_factory=Usage)

    def __post_init__(self) -> None:
        """Start from the prompt and what was delivered."""
        request = self.request
        self.tokens = [*request.prompt, *request.emitted]
        if request.grammar is not None:
            self.grammar = Grammar(request.grammar)

    @property
    def output_count(self) -> int:
        """Tokens generated so far, those of earlier attempts included."""
        return len(self.tokens) - len(self.request.prompt)

    @property
    def remaining(self) -> int:
        """Tokens that may still be generated."""
        return self.request.max_output_tokens - self.output_count

    @property
    def awaiting_parser(self) -> bool:
        """Whether the parser of its grammar gave up, so that it needs another."""
        return self.grammar is not None and self.grammar.failed

    @property
    def decoding(self) -> bool:
        """Whether all tokens but the anchor are committed, or those before a canvas."""
        if self.diffusion is not None:
            return self.committed >= self.diffusion.settled(len(self.tokens))
        return self.committed == len(self.tokens) - 1 and self.output_count > 0

    @property
    def scores_prompt(self) -> bool:
        """Whether log probabilities of the prompt are wanted, and have not been told yet."""
        return self.request.prompt_log_probs is not None and self.output_count == 0

    @property
    def anchor(self) -> int:
        """The newest token."""
        return self.tokens[-1]


def end_at(token: int, sequence: TokenSequence) -> FinishReason | None:
    """Return why a sequence ends with a token that is new to it, if it does."""
    ends = sequence.grammar is not None and sequence.grammar.consume(token)
    ends = ends or token in sequence.request.stop_token_ids
    return FinishReason.STOP if ends else None


def end_without_parser(sequence: TokenSequence) -> FinishReason | None:
    """Return why a sequence ends whose parser gave up, None if another one can follow it."""
    assert sequence.grammar is not None
    return FinishReason.GRAMMAR_FAILED if sequence.grammar.alone else None
