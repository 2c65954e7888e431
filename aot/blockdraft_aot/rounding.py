"""How a compiled program rounds, as far as its text shows; token and row counts factored out.

A logit is made of sums, and a sum of floats depends on its order and on what holds the parts.
Two programs of one signature add alike wherever the text says how. It does not say in which order
the matrix unit adds within a pass, nor what a kernel does (docs/tpu.md).
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from blockdraft_aot.hlo import Instruction, Program, Shape, read_program
from blockdraft_models.decoder.layer import LAYER_SCOPE

Unit = Literal["matrix unit", "vector unit", "chips", "kernel"]

_PRODUCT = "dot_general"
_SUMS = (_PRODUCT, "reduce_sum")
_FLOATS = ("bf16", "f16", "f32", "f64")
_KERNEL = "tpu_custom_call"
_ACROSS_CHIPS = ("all-reduce", "all-reduce-start", "reduce-scatter")


@dataclass(frozen=True, slots=True, order=True)
class Sum:
    """A sum that a program makes for each token, or several alike.

    Attributes:
        where: In a "layer" or elsewhere in the "step", and the primitive it comes from.
        terms: How many numbers are added; 0 for a kernel, which does not say.
        outputs: Results for each token.
        unit: What adds.
        addends: Element types of what is multiplied or added.
        result: Element type of the result.
        parts: Cores or chips that each add a part of the terms.
        order: How the terms of a part are divided into passes; "" where it makes no difference.
    """

    where: str
    terms: int
    outputs: int
    unit: Unit
    addends: str
    result: str
    parts: int
    order: str

    @property
    def name(self) -> str:
        """What identifies the sum in programs of other sizes."""
        return f"{self.where} of {self.terms} to {self.outputs}" if self.terms else self.where

    @property
    def manner(self) -> str:
        """How it is made, in words."""
        words = [f"{self.unit}, {self.addends} to {self.result}"]
        if self.parts > 1:
            words.append(f"{self.parts} parts")
        return ", ".join([*words, self.order] if self.order else words)


@dataclass(frozen=True, slots=True)
class Difference:
    """A sum that two programs make differently.

    Attributes:
        name: Of the sum.
        first: How the first program makes it; "" if it does not.
        second: How the second does.
        order_only: Whether only passes differ, which need not round differently.
    """

    name: str
    first: str
    second: str
    order_only: bool


@dataclass(frozen=True, slots=True)
class Rounding:
    """The signature of a program: all its sums, sorted."""

    sums: tuple[Sum, ...]

    def without_order(self) -> "Rounding":
        """Return the same with nothing said of passes."""
        return Rounding(_without_order(self.sums))

    def differences(self, other: "Rounding") -> tuple[Difference, ...]:
        """Return what another program does differently, what surely rounds differently first."""
        mine, theirs = Counter(self.sums), Counter(other.sums)
        first, second = sorted((mine - theirs).elements()), sorted((theirs - mine).elements())
        found = []
        for name in dict.fromkeys(each.name for each in (*first, *second)):
            here = [each for each in first if each.name == name]
            there = [each for each in second if each.name == name]
            order_only = _without_order(here) == _without_order(there)
            found.append(Difference(name, _manners(here), _manners(there), order_only))
        return tuple(sorted(set(found), key=lambda each: each.order_only))


def rounding_of(text: str) -> Rounding:
    """Return the signature of a program from its text after all optimizations."""
    program = read_program(text)
    return Rounding(tuple(sorted(_sums(program))))


def _sums(program: Program) -> Iterator[Sum]:
    for computation, each in program.instructions():
        primitive = each.scope.rpartition("/")[2]
        if each.opcode == "convolution" and each.results[0].element in _FLOATS:
            yield _matrix_product(program, computation, each)
        elif each.opcode == "reduce" and primitive in _SUMS:
            yield from _vector_sum(program, computation, each)
        elif each.opcode in _ACROSS_CHIPS and primitive in _SUMS:
            yield from _sums_across_chips(each)
        elif each.opcode == "custom-call" and each.attribute("custom_call_target") == _KERNEL:
            yield _kernel(program, computation, each)


def _matrix_product(program: Program, computation: str, each: Instruction) -> Sum:
    left, right = _operands(program, computation, each)
    _, kernel_axes, result_axes = each.attribute("dim_labels").replace("->", "_").split("_")
    terms = right.sizes[kernel_axes.index("i")]
    rows = each.results[0].sizes[result_axes.index("b")]
    config = program.emitted(computation, each)
    windows = _windows(config, "kernel_window_bounds")
    # The terms are the last axis of windows and iterations.
    return Sum(
        _where(each),
        terms,
        each.results[0].count // rows,
        "matrix unit",
        f"{left.element} x {right.element}",
        each.results[0].element,
        _parts(config, {len(_windows(config, "iteration_bounds")) - 1}),
        _passes(_windows(config, "iteration_bounds")[-1:], windows[-1:], _emitter(config)),
    )


def _vector_sum(program: Program, computation: str, each: Instruction) -> Iterator[Sum]:
    operand = _operands(program, computation, each)[0]
    reduced = [int(axis) for axis in each.attribute("dimensions").split(",")]
    terms = math.prod(operand.sizes[axis] for axis in reduced)
    # The sum of one term is how XLA drops an axis.
    if terms == 1 or operand.element not in _FLOATS:
        return
    config = program.emitted(computation, each)
    bounds = [_windows(config, of) for of in ("iteration_bounds", "output_window_bounds")]
    told = all(len(each) == len(operand.sizes) for each in bounds)
    iterations, windows = ([each[axis] for axis in reduced] if told else [] for each in bounds)
    product = each.scope.endswith(_PRODUCT)
    yield Sum(
        _where(each),
        terms,
        # A product is made like this for one token only; other sums are one for each token.
        each.results[0].count if product else 1,
        "vector unit",
        operand.element,
        each.results[0].element,
        _parts(config, set(reduced)) if told else 1,
        _passes(iterations, windows, ""),
    )


def _sums_across_chips(each: Instruction) -> Iterator[Sum]:
    chips = _group_size(each)
    algorithm = each.backend_config.get("collective_algorithm_config", {})
    steps = "several steps" if "is_multistep:1" in algorithm.get("debug", "") else "one step"
    # Two numbers have the same sum in both orders.
    order = f"{each.opcode.removesuffix('-start')} in {steps}" if chips > 2 else ""
    for result in each.results:
        if result.element in _FLOATS:
            # A single axis is that of the tokens.
            width = result.sizes[-1] if len(result.sizes) > 1 else 1
            element = result.element
            yield Sum(_where(each), chips, width, "chips", element, element, chips, order)


def _kernel(program: Program, computation: str, each: Instruction) -> Sum:
    operands = _operands(program, computation, each)
    floats = " x ".join(shape.element for shape in operands if shape.element in _FLOATS)
    outputs = math.prod(each.results[0].sizes[1:])
    name = each.name.partition(".")[0]
    return Sum(name, 0, outputs, "kernel", floats, each.results[0].element, 1, "")


def _operands(program: Program, computation: str, each: Instruction) -> list[Shape]:
    known = program.computations[computation]
    return [known[name].results[0] for name in each.operands if name in known]


def _where(each: Instruction) -> str:
    part = "layer" if LAYER_SCOPE in each.scope else "step"
    product = each.opcode == "convolution" or each.scope.endswith(_PRODUCT)
    across = " across chips" if each.opcode in _ACROSS_CHIPS else ""
    return f"{part} {'product' if product else 'sum'}{across}"


def _windows(config: Any, name: str) -> list[int]:
    return [int(size) for size in config.get("window_config", {}).get(name, ())]


def _emitter(config: Any) -> str:
    name: str = config.get("convolution_algorithm_config", {}).get("emitter", "")
    return name.removeprefix("Emit")


def _passes(iterations: Sequence[int], windows: Sequence[int], emitter: str) -> str:
    if not iterations:
        return emitter
    number = math.prod(iterations)
    passes = f"{number} pass{'es' if number > 1 else ''} of {math.prod(windows)}"
    return f"{passes} ({emitter})" if emitter else passes


def _parts(config: Any, axes: set[int]) -> int:
    """Return in how many parts the two cores of a chip divide a sum over these axes."""
    return 2 if int(config.get("megacore_config", {}).get("megacore_split_dim", -1)) in axes else 1


def _group_size(each: Instruction) -> int:
    """Return how many chips add together, from any of the three ways to write groups."""
    _, _, groups = each.attributes.partition("replica_groups=")
    if groups.startswith("mesh["):
        sizes, _, axes = groups.removeprefix("mesh[").partition("]")
        named = axes.partition("{")[2].partition("}")[0]
        size_of = dict(pair.split("=") for pair in sizes.split(","))
        return math.prod(int(size_of[axis]) for axis in named.split(","))
    if groups.startswith("["):
        return int(groups[1:].partition("]")[0].split(",")[-1])
    return groups.removeprefix("{{").partition("}")[0].count(",") + 1


def _without_order(sums: Sequence[Sum]) -> tuple[Sum, ...]:
    return tuple(sorted(replace(each, order="") for each in sums))


def _manners(sums: Sequence[Sum]) -> str:
    return "; ".join(sorted({each.manner for each in sums}))
