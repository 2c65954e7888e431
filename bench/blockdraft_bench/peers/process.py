"""A peer in a process of its own, asked in lines of JSON.

Its first line says which versions it is. A request is a line with `prompt`, `max_tokens`, `stop`
and what its program takes beside; the answer is one with `tokens` and `seconds`, when each came,
counted by the process itself from when it had read the request.
"""

import contextlib
import json
import subprocess
import tempfile
from collections.abc import Collection, Iterator, Sequence
from typing import IO, Any

from blockdraft_bench.answers import Answer
from blockdraft_bench.errors import BenchError
from blockdraft_verifier.scheduling.sequence import GenerationRequest


class PeerProcess:
    """A program that has loaded a model."""

    def __init__(self, process: subprocess.Popen[str], errors: IO[str]) -> None:
        """Wait until it has loaded the model; `errors` is where it writes what goes wrong."""
        self._process = process
        self._errors = errors
        self.versions: dict[str, str] = self._read()

    def decode(self, request: GenerationRequest, **options: int) -> Answer:
        """Answer a prompt greedily, all of it computed; an error if the program has ended."""
        asked = {
            "prompt": request.prompt,
            "max_tokens": request.max_output_tokens,
            "stop": sorted(request.stop_token_ids),
            **options,
        }
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # reading says why
            self._process.stdin.write(json.dumps(asked) + "\n")
            self._process.stdin.flush()
        answer = self._read()
        return answer_of(answer["tokens"], answer["seconds"], request.stop_token_ids)

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line:
            return json.loads(line)
        code = self._process.wait()
        self._errors.seek(0)
        reason = self._errors.read().strip().rpartition("\n")[-1] or f"exit code {code}"
        raise BenchError(f"a peer ended: {reason}")


@contextlib.contextmanager
def peer_process(command: Sequence[str]) -> Iterator[PeerProcess]:
    """Run a program for as long as the `with` block."""
    with tempfile.TemporaryFile("w+") as errors:
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=errors, text=True)
        try:
            yield PeerProcess(process, errors)
        finally:
            process.kill()
            process.communicate()


def answer_of(
    token_ids: Sequence[int], seconds: Sequence[float], stop_token_ids: Collection[int]
) -> Answer:
    """Return an answer of at least one token, cut after its first stop token.

    Programs that accept several drafted tokens at a time may go on past one. `seconds` say when
    each token came, counted from the request; the same for those that came together.
    """
    ends = (index for index, token in enumerate(token_ids, 1) if token in stop_token_ids)
    kept = tuple(token_ids[: next(ends, len(token_ids))])
    times = seconds[: len(kept)]
    return Answer(
        kept,
        steps=(),
        stopped=kept[-1] in stop_token_ids,
        ttft_seconds=times[0],
        decode_seconds=times[-1] - times[0],
        first_tokens=list(times).count(times[0]),
    )
