"""What Linux tells about processors."""

from pathlib import Path

import pytest

from blockdraft_models.processor import this_processor

X86 = """processor\t: 0
model name\t: AMD EPYC
flags\t\t: fpu avx512f avx512_bf16 amx_bf16 bf16ish

processor\t: 1
model name\t: AMD EPYC
"""
ARM = "processor\t: 0\nFeatures\t: fp asimd bf16\n"


@pytest.mark.parametrize(
    ("told", "name", "instructions"),
    [
        (X86, "AMD EPYC", ("avx512_bf16", "amx_bf16")),
        # It has no name but its architecture.
        (ARM, "", ("bf16",)),
        (None, "", ()),
    ],
)
def test_what_a_system_tells(
    tmp_path: Path, told: str | None, name: str, instructions: tuple[str, ...]
) -> None:
    path = tmp_path / "cpuinfo"
    if told is not None:
        path.write_text(told)
    processor = this_processor(path)
    assert processor.name
    assert name in ("", processor.name)
    assert processor.instructions == instructions
    assert processor.cores >= 1


def test_a_pinned_process_may_use_fewer_cores(one_core: None) -> None:
    assert this_processor().cores == 1
