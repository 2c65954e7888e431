"""Training samples as rows of a corpus with their features, a slice at a time.

The samples are read from disk in slices of bounded size. Half of a slice are samples that were
learned from least, newest first; the other half is drawn from all samples, so that what was learned
earlier is not forgotten. A sample that is damaged, or of another target or feature, is skipped.
"""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Int

from blockdraft_drafter.learning.samples import (
    RAW,
    SampleError,
    SampleStore,
    TrainingSample,
)
from blockdraft_models.executables import next_power_of_two
from blockdraft_training.batches import BatchBuilder
from blockdraft_training.corpus.rows import CorpusRow
from blockdraft_training.loop.held_out import digest
from blockdraft_training.online.settings import LearnSettings

logger = logging.getLogger(__name__)

# Lengths are padded to powers of two from here on: few shapes are compiled.
_SHORTEST = 64
# Files read at once: a ring that was filled while learning was off is not read in one go.
_KNOWN_AT_ONCE = 500
# A block needs an anchor and a token to follow it.
_SHORTEST_COMPLETION = 2


@dataclass(frozen=True, slots=True)
class SampleForm:
    """The form that samples must have to be learned from."""

    target_fingerprint: str  # of the target that computed the features
    layer_ids: tuple[int, ...]  # of the features
    width: int  # elements of a feature before projection
    hidden: int  # elements after projection
    # Fingerprints of the projection that the drafter has, in every type.
    projections: frozenset[str]
    vocab_size: int  # of the target

    def refusal(self, sample: TrainingSample) -> str | None:
        """Return the reason not to learn from a sample; None if there is none."""
        raw = sample.feature_form == RAW
        ids = sample.token_ids
        if sample.target_fingerprint != self.target_fingerprint:
            return "another target"
        if sample.layer_ids != self.layer_ids:
            return "features of other layers"
        if not raw and sample.feature_form not in self.projections:
            return "another projection"
        if sample.features.shape[1] != (self.width if raw else self.hidden):
            return "features of another width"
        if len(ids) and not 0 <= ids.min() <= ids.max() < self.vocab_size:
            return "tokens outside the vocabulary"
        if not np.isfinite(sample.features).all():
            return "features that are not finite"
        if len(ids) - max(sample.completion_start, 1) < _SHORTEST_COMPLETION:
            return "no completion"
        return None


@dataclass(frozen=True, slots=True)
class Slice:
    """Some samples in memory; `KeptFeatures` of their rows, without a teacher."""

    rows: Sequence[CorpusRow]  # their tokens
    offsets: Int[np.ndarray, " rows_and_one"]  # where each row's tokens begin, and the end
    features: np.ndarray  # of all tokens
    projected: bool  # whether the features are projected
    # Empty for every token: the teacher is the token that was served.
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

        A group that is not full is filled up with repetitions of its rows.
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
    """The samples in a folder, split into those to learn from and those held out."""

    def __init__(self, samples: SampleStore, form: SampleForm, settings: LearnSettings) -> None:
        """Begin with the samples that are there."""
        self.refused: Counter[str] = Counter()  # samples skipped, by reason
        self._samples, self._form = samples, form
        self._share, self._passes = settings.schedule.held_out_share, settings.schedule.passes
        self._max_length = settings.max_length
        self._slice_bytes = settings.slice_mib << 20
        self._generator = np.random.default_rng(0)
        # The digest of each usable sample's prompt, which decides on which side the sample is.
        self._prompts: dict[str, bytes] = {}
        self._completions: dict[str, int] = {}  # tokens of each one's completion
        self._bad: set[str] = set()
        self._used: Counter[str] = Counter()

    def next_slice(self) -> Slice | None:
        """Return a slice to learn from; None if every sample was learned from often enough."""
        self._refresh()
        names = self._newest(held_out=False)
        fresh = [name for name in names if self._used[name] < self._passes]
        if not fresh:
            return None
        fresh.sort(key=lambda name: self._used[name])
        half = self._slice_bytes // 2
        samples: dict[str, TrainingSample] = {}
        self._read(samples, fresh, half)
        older = self._generator.permutation(names).tolist()
        self._read(samples, [name for name in older if name not in samples], half)
        self._used.update(samples.keys())
        return _slice([*samples.values()])

    def held_out(self, count: int, longer_than: int = 0) -> Slice | None:
        """Return the newest held-out samples, one of each prompt; None if there are none.

        A prompt that is asked again and again counts once, and completions of at most
        `longer_than` tokens do not count.
        """
        self._refresh()
        newest: dict[bytes, str] = {}
        for name in self._newest(held_out=True):
            if self._completions[name] > longer_than:
                newest.setdefault(self._prompts[name], name)
        samples: dict[str, TrainingSample] = {}
        self._read(samples, list(newest.values())[:count], self._slice_bytes)
        return _slice([*samples.values()])

    def _refresh(self) -> None:
        """Add new samples, newest first, and forget those that are gone."""
        names = self._samples.names()
        there = set(names)
        self._prompts = {n: prompt for n, prompt in self._prompts.items() if n in there}
        self._completions = {n: self._completions[n] for n in self._prompts}
        self._bad &= there
        self._used = Counter({n: used for n, used in self._used.items() if n in there})
        new = [n for n in reversed(names) if n not in self._prompts and n not in self._bad]
        for name in new[:_KNOWN_AT_ONCE]:
            sample = self._usable(name)
            if sample is not None:
                self._prompts[name] = prompt_digest(sample)
                self._completions[name] = len(row_of(cut(sample, self._max_length)).response)

    def _newest(self, *, held_out: bool) -> list[str]:
        """Return the samples of one side, newest first."""
        names = sorted(self._prompts, reverse=True)
        return [n for n in names if is_held_out(self._prompts[n], self._share) == held_out]

    def _usable(self, name: str) -> TrainingSample | None:
        try:
            sample = self._samples.read(name)
            refusal = self._form.refusal(sample)
        except SampleError as error:
            refusal = "damaged or gone"
            logger.debug("%s", error)
        if refusal is None:
            return sample
        self._prompts.pop(name, None)
        self._bad.add(name)
        if not self.refused[refusal]:
            logger.warning("training sample %s is skipped: %s", name, refusal)
        self.refused[refusal] += 1
        return None

    def _read(self, samples: dict[str, TrainingSample], names: Sequence[str], size: int) -> None:
        """Add samples until they have `size` bytes of features, all in the form of the first."""
        for name in names:
            if size <= 0:
                break
            sample = self._usable(name)
            if sample is None:
                continue
            first = next(iter(samples.values()), sample)
            if sample.feature_form == first.feature_form:
                samples[name] = cut(sample, self._max_length)
                size -= samples[name].features.nbytes


def _slice(samples: Sequence[TrainingSample]) -> Slice | None:
    """Put samples of one form side by side."""
    if not samples:
        return None
    lengths = [len(sample.token_ids) for sample in samples]
    return Slice(
        [row_of(sample) for sample in samples],
        np.concatenate([[0], np.cumsum(lengths)]),
        np.concatenate([sample.features for sample in samples]),
        samples[0].feature_form != RAW,
        teacher_ids=np.zeros((sum(lengths), 0), np.int32),
        teacher_logits=np.zeros((sum(lengths), 0), np.float16),
    )


def prompt_digest(sample: TrainingSample) -> bytes:
    """Return the digest of a sample's prompt; of the whole sample if that end is unknown."""
    start = sample.completion_start
    return digest(sample.token_ids[:start] if start > 0 else sample.token_ids)


def is_held_out(prompt: bytes, share: float) -> bool:
    """Return whether the samples of a prompt with this digest are held out."""
    return int.from_bytes(prompt[:8], "big") < share * 2**64


def cut(sample: TrainingSample, length: int) -> TrainingSample:
    """Return at most `length` tokens: a quarter before the completion starts, the rest after.

    Attention depends on distances alone, so the positions of a part may start at 0 again.
    """
    tokens = len(sample.token_ids)
    if tokens <= length:
        return sample
    start = max(sample.completion_start, 0)
    begin = min(max(start - length // 4, 0), tokens - length)
    part = slice(begin, begin + length)
    return replace(
        sample,
        token_ids=sample.token_ids[part],
        features=sample.features[part],
        completion_start=-1 if sample.completion_start < 0 else start - begin,
    )


def row_of(sample: TrainingSample) -> CorpusRow:
    """Return a sample as a row; if its completion is unknown, that is all but the first token."""
    ids = sample.token_ids.tolist()
    start = max(sample.completion_start, 1)
    return CorpusRow("", "recorded", sample.temperature, tuple(ids[:start]), tuple(ids[start:]))


def padded(tokens: int) -> int:
    """Return a length rounded up to a power of two."""
    return max(_SHORTEST, next_power_of_two(tokens))
