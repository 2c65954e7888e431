"""The survey of a pair as JSON and as text."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from blockdraft_aot.compiled import Modelled
from blockdraft_aot.model_shapes import Pair
from blockdraft_aot.settings import CompileSettings, ServingLimits
from blockdraft_aot.survey import RoleSurvey, batch_by_context

_HEADERS = (
    *("kind", "rows", "tokens", "compile s", "GFLOP", "GB", "modelled ms"),
    *("bound", "collectives a layer", "temporary MB", "kernels"),
)


def as_json(roles: Mapping[str, RoleSurvey], pair: Pair, settings: CompileSettings) -> str:
    """Return the survey of all roles as a JSON object."""
    return json.dumps(
        {
            **asdict(settings.survey),
            "target": pair.target.name,
            "weights": pair.weights,
            "roles": {name: _role(role, settings.limits) for name, role in roles.items()},
        },
        indent=2,
    )


def as_text(roles: Mapping[str, RoleSurvey], limits: ServingLimits) -> str:
    """Return a table of every role's programs, and what fits."""
    parts = []
    for name, role in roles.items():
        topology, memory = role.topology, role.memory
        consumers = ", ".join(
            f"{consumer} {size / 1e9:.2f}" for consumer, size in memory.consumers.items() if size
        )
        parts += [f"{name} on {topology.name} ({topology.mesh.size} x {topology.kind})"]
        parts += [*_table(role.programs), ""]
        left = f"left {memory.left / 1e9:.2f} of {memory.usable / 1e9:.1f}"
        parts += [f"GB of one chip: {consumers}; {left}"]
        if role.pages is not None:
            fitting = batch_by_context(role.pages, limits.page_size, limits.max_context_tokens)
            batches = ", ".join(f"{batch} x {length}" for length, batch in fitting.items())
            room = f"{memory.left / (1 << 30):.1f}GiB"
            parts += [f"fits: --kv-cache-memory {room}; sequences x tokens: {batches}"]
        parts += [""]
    parts += ["Modelled from compiled programs; nothing was run."]
    return "\n".join(parts) + "\n"


def _role(role: RoleSurvey, limits: ServingLimits) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "topology": role.topology.name,
        "device": role.topology.kind,
        "chips": role.topology.mesh.size,
        "memory_bytes": {**role.memory.consumers, "usable": role.memory.usable},
        "programs": [_program(program) for program in role.programs],
    }
    if role.pages is not None:
        fields["pages"] = role.pages
        fields["sequences_by_context_tokens"] = batch_by_context(
            role.pages, limits.page_size, limits.max_context_tokens
        )
    return fields


def _program(program: Modelled) -> dict[str, Any]:
    return {
        "kind": program.program.kind,
        "rows": program.program.rows,
        "tokens": program.program.tokens,
        "compile_seconds": program.compiled.compile_seconds,
        "flops": program.counts.flops,
        "bytes": program.counts.bytes,
        "modelled_seconds": program.seconds,
        "bound": program.bound,
        "collectives": program.compiled.collectives,
        "collectives_per_layer": program.collectives_per_layer,
        "temporary_bytes": program.compiled.temporary_bytes,
        "kernels": program.compiled.kernels,
    }


def _table(programs: Iterable[Modelled]) -> list[str]:
    rows = [_HEADERS, *(_cells(program) for program in programs)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADERS))]
    return [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    ]


def _cells(program: Modelled) -> tuple[str, ...]:
    fields = _program(program)
    return (
        fields["kind"],
        str(fields["rows"] or "-"),
        str(fields["tokens"]),
        f"{fields['compile_seconds']:.1f}",
        f"{fields['flops'] / 1e9:.1f}",
        f"{fields['bytes'] / 1e9:.3f}",
        f"{fields['modelled_seconds'] * 1e3:.3f}",
        fields["bound"],
        f"{fields['collectives_per_layer']:.1f}",
        f"{fields['temporary_bytes'] / 1e6:.1f}",
        str(fields["kernels"]),
    )
