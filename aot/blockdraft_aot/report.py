"""The survey of a pair as JSON and as text."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from blockdraft_aot.classes_report import classes_json, classes_text, paddings_json
from blockdraft_aot.fit import Memory, batch_by_context
from blockdraft_aot.modelled import Modelled
from blockdraft_aot.pair import Pair
from blockdraft_aot.settings import ServingLimits
from blockdraft_aot.survey import RoleSurvey


def as_json(
    roles: Mapping[str, RoleSurvey], pair: Pair, limits: ServingLimits, settings: Mapping[str, Any]
) -> str:
    """Return everything that is known, as a JSON object."""
    return json.dumps(
        {
            **settings,
            "target": pair.target.name,
            "weights": pair.weights,
            "roles": {name: _role(role, limits) for name, role in roles.items()},
        },
        indent=2,
    )


def as_text(roles: Mapping[str, RoleSurvey], limits: ServingLimits) -> str:
    """Return a table of every role's programs, and what fits."""
    parts = []
    for name, role in roles.items():
        chips = role.topology.mesh.size
        parts += [f"{name} on {role.topology.name} ({chips} x {role.topology.kind})"]
        parts += [*_table(role.programs), ""]
        memory = role.memory
        parts += [f"GB of one chip: {_gb(memory.consumers)}; {_left(memory)}"]
        if role.pages is not None:
            fitting = batch_by_context(role.pages, limits.page_size, limits.max_context_tokens)
            batches = ", ".join(f"{batch} x {length}" for length, batch in fitting.items())
            parts += [f"pages that fit: {role.pages} (--num-pages); sequences x tokens: {batches}"]
            parts += ["", *classes_text(role.classes, role.paddings, role.topology.name)]
        parts += [""]
    parts += ["Modelled from compiled programs; nothing was run."]
    return "\n".join(parts) + "\n"


def _role(role: RoleSurvey, limits: ServingLimits) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "topology": role.topology.name,
        "device": role.topology.kind,
        "chips": role.topology.mesh.size,
        "memory_bytes": {**role.memory.consumers, "usable": role.memory.usable},
        "programs": [_program(each) for each in role.programs],
    }
    if role.pages is not None:
        fields["pages"] = role.pages
        fields["sequences_by_context_tokens"] = batch_by_context(
            role.pages, limits.page_size, limits.max_context_tokens
        )
        fields["classes_of_rounding"] = classes_json(role.classes)
        fields["padding_of_plain_steps"] = paddings_json(role.paddings)
    return fields


def _gb(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{what} {size / 1e9:.2f}" for what, size in sizes.items())


def _left(memory: Memory) -> str:
    return f"left {memory.left / 1e9:.2f} of {memory.usable / 1e9:.1f}"


def _program(each: Modelled) -> dict[str, Any]:
    return {
        "kind": each.program.kind,
        "rows": each.program.rows,
        "tokens": each.program.tokens,
        "compile_seconds": each.compiled.compile_seconds,
        "flops": each.counts.flops,
        "bytes": each.counts.bytes,
        "modelled_seconds": each.seconds,
        "bound": each.bound,
        "collectives": each.compiled.collectives,
        "collectives_per_layer": each.collectives_per_layer,
        "temporary_bytes": each.compiled.temporary_bytes,
        "kernels": each.compiled.kernels,
    }


_HEADERS = (
    *("kind", "rows", "tokens", "compile s", "GFLOP", "GB", "modelled ms"),
    *("bound", "collectives a layer", "temporary MB", "kernels"),
)


def _table(programs: Iterable[Modelled]) -> list[str]:
    rows = [_HEADERS, *(_cells(each) for each in programs)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADERS))]
    return [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    ]


def _cells(each: Modelled) -> tuple[str, ...]:
    return (
        each.program.kind,
        str(each.program.rows or "-"),
        str(each.program.tokens),
        f"{each.compiled.compile_seconds:.1f}",
        f"{each.counts.flops / 1e9:.1f}",
        f"{each.counts.bytes / 1e9:.3f}",
        f"{each.seconds * 1e3:.3f}",
        each.bound,
        f"{each.collectives_per_layer:.1f}",
        f"{each.compiled.temporary_bytes / 1e6:.1f}",
        str(each.compiled.kernels),
    )
