"""The row of a processor."""

from dataclasses import replace

from blockdraft_bench.common.provenance import Drafter, Hardware, Target
from blockdraft_bench.common.record import from_json, to_json
from blockdraft_bench.processor.report import ProcessorReport, ProcessorRow, markdown
from blockdraft_models.processor import Processor

ROW = ProcessorRow(
    target=Target("0" * 16, "tiny"),
    drafter=Drafter("eagle3", "1" * 16, trained=True),
    processor=Processor("Xeon", ("avx512_bf16", "amx_bf16"), 2),
    auto="bfloat16",
    bfloat16_speedup=2.2026,
    product_forms=("576x576 weight/8", "1536x576 rows/4"),
    self_test="exact in bfloat16: all 35 step shapes round alike",
    plain_tokens_per_second=40.0,
    drafted_tokens_per_second=90.0,
    identical=True,
)
REPORT = ProcessorReport(
    command="blockdraft bench processor",
    commit="0123456789abcdef-dirty",
    versions={"jaxlib": "0.10.2"},
    hardware=Hardware("Xeon", 2, None, ("avx512_bf16", "amx_bf16")),
    target=ROW.target,
    date="2026-11-25",
    rows=(
        ROW,
        replace(
            ROW,
            processor=Processor("Xeon", (), 1),
            auto="float32",
            plain_tokens_per_second=None,
            identical=False,
        ),
    ),
)


def test_rows() -> None:
    head, _, *rows = markdown(REPORT).splitlines()
    assert {line.count("|") for line in (head, *rows)} == {15}
    assert rows == [
        "| 2026-11-25 | 0123456-dirty | Xeon | avx512_bf16, amx_bf16 | 2 | 0.10.2 | bfloat16 "
        "| 2.20x | 576x576 weight/8, 1536x576 rows/4 "
        "| exact in bfloat16: all 35 step shapes round alike | 40.0 | 90.0 | 2.25x | yes |",
        "| 2026-11-25 | 0123456-dirty | Xeon | none | 1 | 0.10.2 | float32 "
        "| 2.20x | 576x576 weight/8, 1536x576 rows/4 "
        "| exact in bfloat16: all 35 step shapes round alike | - | 90.0 | - | **no** |",
    ]


def test_a_report_is_read_as_it_was_written() -> None:
    assert from_json(ProcessorReport, to_json(REPORT)) == REPORT


def test_an_installed_copy_knows_no_commit() -> None:
    assert "| unknown | Xeon |" in markdown(replace(REPORT, commit=None))
