"""Recorded traffic as rows of a corpus with their features at hand, a slice of it at a time.

What the drafter recorded is read from disk in slices of bounded size: first what was learned from
least, newest first, and as much again from all that is there, so that what was learned earlier is
not forgotten. A recording that is damaged, or of another target or feature, is passed over.
"""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Int

from blockdraft_drafter.learning.samples import (
    RAW,
    Recording,
    RecordingError,
    Recordings,
)
from blockdraft_training.batches import BatchBuilder
from blockdraft_training.corpus.rows import CorpusRow
from blockdraft_training.loop.held_out import digest
from blockdraft_training.online.settings import LearnSettings

logger = logging.getLogger(__name__)

# Lengths are padded to powers of two from here on: few shapes are compiled.
_SHORTEST = 64
# Files looked into at once: a ring that was filled while nobody learned is not read in one go.
_KNOWN_AT_ONCE = 500
# A block needs an anchor and a token to follow it.
_LEAST_ANSWER = 2


@dataclass(frozen=True, slots=True)
class Form:
    """What recordings must be to be learned from."""

    target_fingerprint: str  # whose features they are
    layer_ids: tuple[int, ...]  # of which layers
    width: int  # elements of a feature before projection
    hidden: int  # and after
    # Fingerprints of the projection that the drafter has, in every type.
    projections: frozenset[str]
    vocab_size: int  # of the target

    def refusal(self, recording: Recording) -> str | None:
        """Return why a recording cannot be learned from; None if it can."""
        raw = recording.feature_form == RAW
        ids = recording.token_ids
        if recording.target_fingerprint != self.target_fingerprint:
            return "another target"
        if recording.layer_ids != self.layer_ids:
            return "features of other layers"
        if not raw and recording.feature_form not in self.projections:
            return "another projection"
        if recording.features.shape[1] != (self.width if raw else self.hidden):
            return "features of another width"
        if len(ids) and not 0 <= ids.min() <= ids.max() < self.vocab_size:
            return "tokens outside the vocabulary"
        if not np.isfinite(recording.features).all():
            return "features that are no numbers"
        if len(ids) - max(recording.completion_start, 1) < _LEAST_ANSWER:
            return "no answer"
        return None


@dataclass(frozen=True, slots=True)
class Slice:
    """Some recordings in memory; `KeptFeatures` of their rows, without a teacher."""

    rows: Sequence[CorpusRow]  # their tokens
    offsets: Int[np.ndarray, " rows_and_one"]  # where each row's begin
    features: np.ndarray  # of all of them
    projected: bool  # whether those are projected
    # Nothing for every token: the teacher is the token that was served.
    teacher_ids: np.ndarray
    teacher_logits: np.ndarray

    def features_of(self, begin: int, end: int) -> np.ndarray:
        """Return the features of some tokens."""
        return self.features[begin:end]

    def builder(self, numbers: Sequence[int]) -> BatchBuilder:
        """Return the builder of batches of some rows, in shapes shared by many."""
        length = padded(max(len(self.rows[number].token_ids) for number in numbers))
        return BatchBuilder(self.rows, length, length, self, self.projected)

    def batches(self, size: int, generator: np.random.Generator) -> list[list[int]]:
        """Return rows of similar lengths, `size` at a time, in random order.

        A group that is not full is filled up with rows of its own.
        """
        groups: dict[int, list[int]] = {}
        for number in generator.permutation(len(self.rows)).tolist():
            groups.setdefault(padded(len(self.rows[number].token_ids)), []).append(number)
        cut = [
            [group[place % len(group)] for place in range(start, start + size)]
            for group in groups.values()
            for start in range(0, len(group), size)
        ]
        return [cut[index] for index in generator.permutation(len(cut))]


class Traffic:
    """The recordings in a folder, split into those to learn from and those held out."""

    def __init__(self, recordings: Recordings, form: Form, settings: LearnSettings) -> None:
        """Begin with what is there."""
        self.refused: Counter[str] = Counter()  # recordings passed over, by reason
        self._recordings, self._form = recordings, form
        self._share, self._passes = settings.schedule.held_out_share, settings.schedule.passes
        self._max_length = settings.max_length
        self._slice_bytes = settings.slice_mib << 20
        self._generator = np.random.default_rng(0)
        # What decides on which side each usable recording is.
        self._prompts: dict[str, bytes] = {}
        self._bad: set[str] = set()
        self._used: Counter[str] = Counter()

    def next_slice(self) -> Slice | None:
        """Return a slice to learn from; None if all was learned from often enough."""
        self._look()
        known = self._newest(held_out=False)
        fresh = [name for name in known if self._used[name] < self._passes]
        if not fresh:
            return None
        fresh.sort(key=lambda name: self._used[name])
        half = self._slice_bytes // 2
        found: dict[str, Recording] = {}
        self._read(found, fresh, half)
        older = self._generator.permutation(known).tolist()
        self._read(found, [name for name in older if name not in found], half)
        self._used.update(found.keys())
        return _slice([*found.values()])

    def held_out(self, count: int) -> Slice | None:
        """Return the newest held-out recordings, one of each prompt; None if there are none.

        A prompt that is asked again and again tells no more than once.
        """
        self._look()
        newest: dict[bytes, str] = {}
        for name in self._newest(held_out=True):
            newest.setdefault(self._prompts[name], name)
        found: dict[str, Recording] = {}
        self._read(found, list(newest.values())[:count], self._slice_bytes)
        return _slice([*found.values()])

    def _look(self) -> None:
        """Learn of new recordings, newest first, and forget those that are gone."""
        names = self._recordings.names()
        there = set(names)
        self._prompts = {n: prompt for n, prompt in self._prompts.items() if n in there}
        self._bad &= there
        self._used = Counter({n: used for n, used in self._used.items() if n in there})
        new = [n for n in reversed(names) if n not in self._prompts and n not in self._bad]
        for name in new[:_KNOWN_AT_ONCE]:
            recording = self._usable(name)
            if recording is not None:
                self._prompts[name] = prompt_digest(recording)

    def _newest(self, *, held_out: bool) -> list[str]:
        """Return the recordings of one side, newest first."""
        names = sorted(self._prompts, reverse=True)
        return [n for n in names if is_held_out(self._prompts[n], self._share) == held_out]

    def _usable(self, name: str) -> Recording | None:
        try:
            recording = self._recordings.read(name)
            refusal = self._form.refusal(recording)
        except RecordingError as error:
            refusal = "damaged or gone"
            logger.debug("%s", error)
        if refusal is None:
            return recording
        self._prompts.pop(name, None)
        self._bad.add(name)
        if not self.refused[refusal]:
            logger.warning("recording %s is not learned from: %s", name, refusal)
        self.refused[refusal] += 1
        return None

    def _read(self, found: dict[str, Recording], names: Sequence[str], room: int) -> None:
        """Add as many as there is room for, at least one, all in the form of the first."""
        for name in names:
            if room <= 0:
                break
            recording = self._usable(name)
            if recording is None:
                continue
            first = next(iter(found.values()), recording)
            if recording.feature_form == first.feature_form:
                found[name] = cut(recording, self._max_length)
                room -= found[name].features.nbytes


def _slice(recordings: Sequence[Recording]) -> Slice | None:
    """Put recordings of one form side by side."""
    if not recordings:
        return None
    lengths = [len(recording.token_ids) for recording in recordings]
    return Slice(
        [row_of(recording) for recording in recordings],
        np.concatenate([[0], np.cumsum(lengths)]),
        np.concatenate([recording.features for recording in recordings]),
        recordings[0].feature_form != RAW,
        teacher_ids=np.zeros((sum(lengths), 0), np.int32),
        teacher_logits=np.zeros((sum(lengths), 0), np.float16),
    )


def prompt_digest(recording: Recording) -> bytes:
    """Return the digest of a recording's prompt; of all of it where its prompt's end is unknown."""
    start = recording.completion_start
    return digest(recording.token_ids[:start] if start > 0 else recording.token_ids)


def is_held_out(prompt: bytes, share: float) -> bool:
    """Return whether recordings of a prompt, of which this is the digest, are not learned from."""
    return int.from_bytes(prompt[:8], "big") < share * 2**64


def cut(recording: Recording, length: int) -> Recording:
    """Return at most `length` tokens: a quarter before the answer begins, the rest after.

    Attention is by distance alone, so where a sequence is cut its positions may begin anew.
    """
    tokens = len(recording.token_ids)
    if tokens <= length:
        return recording
    start = max(recording.completion_start, 0)
    begin = min(max(start - length // 4, 0), tokens - length)
    kept = slice(begin, begin + length)
    return replace(
        recording,
        token_ids=recording.token_ids[kept],
        features=recording.features[kept],
        completion_start=-1 if recording.completion_start < 0 else start - begin,
    )


def row_of(recording: Recording) -> CorpusRow:
    """Return a recording's tokens as a row; of one whose answer is unknown all but the first."""
    ids = recording.token_ids.tolist()
    start = max(recording.completion_start, 1)
    return CorpusRow("", "recorded", recording.temperature, tuple(ids[:start]), tuple(ids[start:]))


def padded(tokens: int) -> int:
    """Return a length rounded up to a power of two."""
    return max(_SHORTEST, 1 << (tokens - 1).bit_length())
