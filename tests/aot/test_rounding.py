"""Signatures of programs, from lines of real compilations for v5p (Llama 3.1 8B, four chips)."""

import pytest

from blockdraft_aot.rounding import Rounding, rounding_of

SCOPE = "jit(_run)/while/body/closed_call/decoder_layer"

MATRIX = """
%fused (param_0: bf16[{tokens},1024], param_1: bf16[4096,1024]) -> bf16[{tokens},4096] {{
  %param_0 = bf16[{tokens},1024]{{1,0:T(8,128)(2,1)}} parameter(0)
  %param_1 = bf16[4096,1024]{{1,0:T(8,128)(2,1)}} parameter(1)
  ROOT %convolution.30 = bf16[{tokens},4096]{{1,0:T(8,128)(2,1)}} convolution(%param_0, %param_1), \
dim_labels=bf_oi->bf, metadata={{op_name="{scope}/cond/branch_0_fun/dot_general" stack_frame_id=1}}
}}

ENTRY %main (p0: bf16[{tokens},1024], p1: bf16[4096,1024]) -> bf16[{tokens},4096] {{
  %p0 = bf16[{tokens},1024]{{1,0:T(8,128)(2,1)}} parameter(0)
  %p1 = bf16[4096,1024]{{1,0:T(8,128)(2,1)}} parameter(1)
  ROOT %fusion.106 = bf16[{tokens},4096]{{1,0:T(8,128)(2,1)}} fusion(%p0, %p1), kind=kOutput, \
calls=%fused, backend_config={{"window_config":{{"kernel_window_bounds":["128","{tile}"],\
"output_window_bounds":["2","8"],"iteration_bounds":["4","1","{passes}"]}},"megacore_config":\
{{"megacore_split_dim":"{split}"}},"convolution_algorithm_config":\
{{"emitter":"EmitAllBatchInSublanes"}}}}
}}
"""

HEADS = """
ENTRY %main (a: bf16[16,4096,1], b: bf16[2,128,4096]) -> bf16[16,2,128] {
  %a = bf16[16,4096,1]{1,0,2:T(8,128)(2,1)} parameter(0)
  %b = bf16[2,128,4096]{2,1,0:T(8,128)(2,1)} parameter(1)
  ROOT %convolution.28 = bf16[16,2,128]{2,0,1:T(8,128)(2,1)} convolution(%a, %b), window={size=2 \
pad=1_1 rhs_reversal=1}, dim_labels=bf0_0oi->b0f, metadata={op_name="jit(_run)/decoder_layer/x"}, \
backend_config={"window_config":{"kernel_window_bounds":["2","16","16"],"iteration_bounds":\
["1","1","1","1","2"]},"megacore_config":{"megacore_split_dim":"4","megacore_allreduce_bytes":"9"}}
}
"""

VECTOR = (
    """
%fused (param_0: bf16[4096,1024], param_1: bf16[1024]) -> bf16[4096] {
  %param_0 = bf16[4096,1024]{1,0:T(8,128)(2,1)} parameter(0)
  %convert.134 = bf16[4096,1024]{1,0:T(8,128)(2,1)} convert(%multiply.155)
  %constant.288 = bf16[]{:T(256)} constant(0)
  ROOT %reduce.191 = bf16[4096]{0:T(1024)(128)(2,1)S(1)} reduce(%convert.134, %constant.288), \
dimensions={1}, to_apply=%add, metadata={op_name="SCOPE/cond/branch_0_fun/dot_general"}
}

ENTRY %main (p0: bf16[4096,1024], p1: bf16[1024]) -> bf16[4096] {
  %p0 = bf16[4096,1024]{1,0:T(8,128)(2,1)} parameter(0)
  %p1 = bf16[1024]{0:T(1024)(128)(2,1)} parameter(1)
  %fusion.19 = bf16[4096]{0:T(1024)(128)(2,1)S(1)} fusion(%p0, %p1), kind=kLoop, calls=%fused, \
backend_config={"window_config":{"kernel_window_bounds":[],"output_window_bounds":["512","2"],\
"iteration_bounds":["1","4"]},"megacore_config":{"megacore_split_dim":"1"}}
  ROOT %reduce.7 = bf16[4096]{0:T(1024)} reduce(%p0, %p1), dimensions={1}, to_apply=%max, \
metadata={op_name="SCOPE/reduce_max"}
}
"""
).replace("SCOPE", SCOPE)

ACROSS = """
ENTRY %main (p: bf16[16,4096]) -> bf16[16,4096] {{
  %p = bf16[16,4096]{{1,0:T(8,128)(2,1)}} parameter(0)
  ROOT %all-reduce.11 = bf16[16,4096]{{1,0:T(8,128)(2,1)}} all-reduce(%p), channel_id=1, \
replica_groups={groups}, to_apply=%add, metadata={{op_name="decoder_layer/dot_general"}}, \
backend_config={{"collective_algorithm_config":{{"debug":"x,is_multistep:1,1"}}}}
}}
"""

KERNEL = """
ENTRY %main (p: bf16[16,8,128]) -> bf16[16,8,128] {
  %n = s32[1]{0} parameter(0)
  %q = bf16[16,8,128]{2,1,0:T(8,128)(2,1)} parameter(1)
  ROOT %ragged_paged_attention_kernel.1 = bf16[16,8,128]{2,1,0:T(8,128)(2,1)} custom-call(%n, %q), \
custom_call_target="tpu_custom_call", metadata={op_name="decoder_layer/pallas_call"}
}
"""


def matrix(tokens: int = 16, tile: int = 8, passes: int = 1, split: int = 0) -> Rounding:
    text = MATRIX.format(tokens=tokens, tile=tile, passes=passes, split=split, scope=SCOPE)
    return rounding_of(text)


def only(text: str) -> tuple[str, str]:
    (one,) = rounding_of(text).sums
    return one.name, one.manner


def test_a_product_of_several_tokens_is_the_matrix_units() -> None:
    (one,) = matrix().sums
    assert one.name == "layer product of 1024 to 4096"
    assert one.manner == "matrix unit, bf16 x bf16 to bf16, 1 pass of 8 (AllBatchInSublanes)"


def test_a_product_of_one_token_is_the_vector_units_and_maxima_do_not_round() -> None:
    assert only(VECTOR) == (
        "layer product of 1024 to 4096",
        "vector unit, bf16 to bf16, 2 parts, 4 passes of 2",
    )


def test_the_cores_of_a_chip_divide_the_terms() -> None:
    assert only(HEADS) == (
        "layer product of 4096 to 256",
        "matrix unit, bf16 x bf16 to bf16, 2 parts, 2 passes of 16",
    )
    # Divided results are not divided sums.
    assert matrix(split=0).sums[0].parts == 1
    assert matrix(split=2).sums[0].parts == 2


@pytest.mark.parametrize("tokens", [2, 8, 16, 128])
def test_the_number_of_tokens_is_no_part_of_it(tokens: int) -> None:
    assert matrix(tokens) == matrix(16)


def test_passes_need_not_round_differently_but_cores_and_units_do() -> None:
    (passes,) = matrix().differences(matrix(tile=4, passes=2))
    assert passes.order_only
    assert matrix().without_order() == matrix(tile=4, passes=2).without_order()
    (cores,) = matrix().differences(matrix(split=2))
    assert not cores.order_only
    (unit,) = rounding_of(VECTOR).differences(matrix())
    assert unit.name == "layer product of 1024 to 4096"
    assert unit.first.startswith("vector unit")
    assert unit.second.startswith("matrix unit")
    assert not unit.order_only


def test_nothing_differs_from_itself() -> None:
    assert matrix().differences(matrix()) == ()


@pytest.mark.parametrize(
    ("groups", "manner"),
    [
        (
            "mesh['axis_0'=1,'axis_1'=4] {'axis_1'}",
            "chips, bf16 to bf16, 4 parts, all-reduce in several steps",
        ),
        ("[1,4]<=[4]", "chips, bf16 to bf16, 4 parts, all-reduce in several steps"),
        # A sum of two has one order.
        ("{{0,1},{2,3}}", "chips, bf16 to bf16, 2 parts"),
    ],
)
def test_sums_across_chips(groups: str, manner: str) -> None:
    text = ACROSS.format(groups=groups)
    assert only(text)[1] == manner
    assert only(text)[0].startswith("layer product across chips of")
    one_a_token = text.replace("16,4096]{1,0:T(8,128)(2,1)}", "16]{0:T(128)}")
    assert only(one_a_token)[0].endswith("to 1")
    # Rows looked up on one chip of several are added to zeros.
    assert rounding_of(text.replace("dot_general", "gather")).sums == ()


def test_a_kernel_is_known_by_its_name_and_types_only() -> None:
    assert only(KERNEL) == ("ragged_paged_attention_kernel", "kernel, bf16 to bf16")
