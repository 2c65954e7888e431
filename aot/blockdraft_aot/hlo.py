"""Reads the text of a compiled program: its computations, instructions and their attributes."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_COMPUTATION = re.compile(r"^(?:ENTRY )?%([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%([\w.\-]+) = (.*?) ([a-z][\w\-]*)\((.*)$")
_SHAPE = re.compile(r"\b([a-z]+\d*)\[([\d,]*)\]")
_OPERAND = re.compile(r"%([\w.\-]+)")
_BACKEND_CONFIG = "backend_config="


@dataclass(frozen=True, slots=True)
class Shape:
    """An array: its element type, as XLA calls it, and its sizes."""

    element: str
    sizes: tuple[int, ...]

    @property
    def count(self) -> int:
        """The number of elements."""
        return math.prod(self.sizes)


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction.

    Attributes:
        name: Unique in its program.
        results: What it returns; several arrays if it returns a tuple.
        opcode: Such as "convolution".
        operands: Names of what it takes.
        attributes: The rest of its line.
    """

    name: str
    results: tuple[Shape, ...]
    opcode: str
    operands: tuple[str, ...]
    attributes: str

    def attribute(self, name: str) -> str:
        """Return an attribute up to the comma after it, or "" if there is none.

        What stands in braces is returned without them, all of it.
        """
        match = re.search(rf"\b{name}=(?:\{{([^}}]*)\}}|\"([^\"]*)\"|([^\s,]+))", self.attributes)
        return "" if match is None else next(group for group in match.groups() if group is not None)

    @property
    def scope(self) -> str:
        """Where it comes from in the traced program, such as "jit(f)/while/body/dot_general"."""
        return self.attribute("op_name")

    @property
    def backend_config(self) -> Mapping[str, Any]:
        """What the backend decided; empty if it says nothing, or not as JSON."""
        _, found, text = self.attributes.partition(_BACKEND_CONFIG)
        if not found:
            return {}
        try:
            config: Mapping[str, Any] = json.JSONDecoder().raw_decode(text)[0]
        except ValueError:
            return {}
        return config


@dataclass(frozen=True, slots=True)
class Program:
    """A compiled program.

    Attributes:
        computations: The instructions of each computation, by its name.
        callers: The instruction that calls a fused computation, by its name.
    """

    computations: Mapping[str, Mapping[str, Instruction]]
    callers: Mapping[str, tuple[str, Instruction]]

    def instructions(self) -> Iterator[tuple[str, Instruction]]:
        """Yield every instruction after the name of its computation."""
        for name, computation in self.computations.items():
            for instruction in computation.values():
                yield name, instruction

    def emitted(self, computation: str, instruction: Instruction) -> Mapping[str, Any]:
        """Return the configuration of the instruction, or of the fusion that it is a part of."""
        while "window_config" not in instruction.backend_config and computation in self.callers:
            computation, instruction = self.callers[computation]
        return instruction.backend_config


def read_program(text: str) -> Program:
    """Read a program from what `jax.stages.Compiled.as_text` returns."""
    computations: dict[str, dict[str, Instruction]] = {}
    callers: dict[str, tuple[str, Instruction]] = {}
    name = ""
    for line in text.splitlines():
        if head := _COMPUTATION.match(line):
            name = head[1]
            computations[name] = {}
        elif (body := _INSTRUCTION.match(line)) and name:
            instruction = _instruction(body)
            computations[name][instruction.name] = instruction
            if instruction.opcode == "fusion":
                callers[instruction.attribute("calls").removeprefix("%")] = name, instruction
    return Program(computations, callers)


def _instruction(line: re.Match[str]) -> Instruction:
    name, results, opcode, rest = line.groups()
    operands, _, attributes = rest.partition(")")
    shapes = tuple(
        Shape(element, tuple(int(size) for size in sizes.split(",") if size))
        for element, sizes in _SHAPE.findall(results)
    )
    return Instruction(name, shapes, opcode, tuple(_OPERAND.findall(operands)), attributes)
