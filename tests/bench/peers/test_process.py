"""Asking a peer in lines of JSON, and what is said when it ends."""

import sys
from pathlib import Path

import pytest
from tests.bench.peers.fake import write_fake_peer

from blockdraft_bench.answers import Answer
from blockdraft_bench.errors import BenchError
from blockdraft_bench.peers.decoders import peer_process
from blockdraft_verifier.scheduling.sequence import GenerationRequest


def asked(*prompt: int, stop: frozenset[int] = frozenset()) -> GenerationRequest:
    return GenerationRequest("one", prompt, max_output_tokens=5, stop_token_ids=stop)


def test_answers(tmp_path: Path) -> None:
    with peer_process([str(write_fake_peer(tmp_path / "fake"))]) as peer:
        assert peer.versions == {"fake": "1.0"}
        whole = peer.decode(asked(1))
        assert whole == Answer((100, 101, 102, 103, 104), (), False, 0.25, 1.0, first_tokens=2)
        assert whole.timed_tokens == 3
        assert peer.decode(asked(1), lookup_tokens=10).token_ids[0] == 110
        # What follows a stop token is cut, and its time with it.
        cut = peer.decode(asked(1, stop=frozenset({102})))
        assert cut == Answer((100, 101, 102), (), True, 0.25, 0.5, first_tokens=2)
        first = peer.decode(asked(1, stop=frozenset({100})))
        assert first == Answer((100,), (), True, 0.25, 0.0, first_tokens=1)


def test_says_why_it_ended(tmp_path: Path) -> None:
    with peer_process([str(write_fake_peer(tmp_path / "fake"))]) as peer:
        for _ in range(2):  # the second time it cannot even be asked
            with pytest.raises(BenchError, match="a peer ended: unlucky"):
                peer.decode(asked(13))


def test_says_why_it_did_not_start() -> None:
    failing = pytest.raises(BenchError, match="a peer ended: exit code 3")
    with failing, peer_process([sys.executable, "-c", "raise SystemExit(3)"]):
        pass
