"""What Linux tells about processors."""

from pathlib import Path

from blockdraft_models.processor import Processor, this_processor

X86 = """processor\t: 0
model name\t: AMD EPYC
flags\t\t: fpu avx512f avx512_bf16 amx_bf16 bf16ish

processor\t: 1
model name\t: AMD EPYC
"""
ARM = "processor\t: 0\nFeatures\t: fp asimd bf16\n"


def told(tmp_path: Path, text: str) -> Processor:
    path = tmp_path / "cpuinfo"
    path.write_text(text)
    return this_processor(path)


def test_x86(tmp_path: Path) -> None:
    processor = told(tmp_path, X86)
    assert processor.name == "AMD EPYC"
    assert processor.instructions == ("avx512_bf16", "amx_bf16")
    assert processor.cores >= 1


def test_arm_has_no_name_but_its_architecture(tmp_path: Path) -> None:
    processor = told(tmp_path, ARM)
    assert processor.name
    assert processor.instructions == ("bf16",)


def test_a_system_that_tells_nothing(tmp_path: Path) -> None:
    processor = this_processor(tmp_path / "missing")
    assert processor.name
    assert processor.instructions == ()


def test_in_words() -> None:
    assert str(Processor("EPYC", (), 2)) == "EPYC, no bfloat16 instructions, 2 cores"
    both = Processor("Xeon", ("avx512_bf16", "amx_bf16"), 4)
    assert str(both) == "Xeon, avx512_bf16 and amx_bf16, 4 cores"


def test_a_pinned_process_may_use_fewer_cores(one_core: None) -> None:
    assert this_processor().cores == 1
