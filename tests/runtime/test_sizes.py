"""Sizes in bytes as people write them."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockdraft_runtime.configuration.command import Configuration
from blockdraft_runtime.settings.process import Size, parse_size, size_text
from blockdraft_runtime.settings.verifier import VerifierSettings


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4096", 4096),
        ("1GiB", 1 << 30),
        ("1.5 GiB", 3 << 29),
        ("500MB", 500_000_000),
        ("2g", 2_000_000_000),
        ("3KiB", 3072),
    ],
)
def test_a_size_is_read(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "4 XB", "-1GiB", "1GiBs", "1,5GiB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be a size such as"):
        parse_size(text)


def test_sizes_in_words() -> None:
    assert (size_text(3 << 29), size_text(320 << 20)) == ("1.5 GiB", "320 MiB")


def test_a_size_comes_by_flag_variable_and_file(tmp_path: Path) -> None:
    told = Configuration("verifier", VerifierSettings)
    variable = {"BLOCKDRAFT_VERIFIER_KV_CACHE_MEMORY": "2GiB"}
    assert told.resolve({}, variable).cache.kv_cache_bytes == 2 << 30
    assert told.resolve({"kv_cache_memory": "3MiB"}, variable).cache.kv_cache_bytes == 3 << 20
    for written in ('"4MiB"', str(4 << 20)):
        file = tmp_path / "settings.toml"
        file.write_text(f"[verifier]\nkv-cache-memory = {written}\n")
        assert told.resolve({"config": str(file)}, {}).cache.kv_cache_bytes == 4 << 20
    assert told.flags(told.resolve({}, variable)) == ("--kv-cache-memory=2GiB",)


@given(st.integers(0, 1 << 50))
def test_what_is_written_is_read_as_the_same(size: int) -> None:
    assert parse_size(str(Size(size))) == size
