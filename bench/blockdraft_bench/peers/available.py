"""Which peers can take part, found out without loading them."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from blockdraft_bench.common.errors import BenchUsageError
from blockdraft_bench.common.provenance import version

TRANSFORMERS, LLAMA_CPP = "transformers", "llama.cpp"
# What each is imported as, and what it is called where it is installed from.
MODULES = {
    TRANSFORMERS: {"transformers": "transformers", "torch": "torch"},
    LLAMA_CPP: {"llama_cpp": "llama-cpp-python"},
}
PEERS = tuple(MODULES)


def choose_peers(wanted: Sequence[str], target: Path) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the peers that take part, and why each of the others does not.

    Args:
        wanted: Peers asked for; none for all that can.
        target: What they are to decode with.

    Raises:
        BenchUsageError: If a peer was asked for that cannot take part.
    """
    reasons = {peer: obstacle(peer, target) for peer in wanted or PEERS}
    skipped = {peer: reason for peer, reason in reasons.items() if reason is not None}
    if wanted and skipped:
        peer, reason = next(iter(skipped.items()))
        raise BenchUsageError(f"{peer} cannot take part: {reason}")
    return tuple(peer for peer in reasons if peer not in skipped), skipped


def obstacle(peer: str, target: Path) -> str | None:
    """Return why a peer cannot take part, or None if it can."""
    absent = [package for name, package in MODULES[peer].items() if not _installed(name)]
    if absent:
        return f"not installed; try `pip install {' '.join(absent)}`"
    if peer == LLAMA_CPP and target.suffix != ".gguf":
        return f"it reads only .gguf files, which {target.name} is not"
    return None


def peer_versions() -> dict[str, str | None]:
    """Return the version of every package a peer needs; None if it is not installed."""
    return {package: version(package) for names in MODULES.values() for package in names.values()}


def _installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None
