"""A process with all its descendants: which they are, and how much processor time they used."""

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class _Process:
    parent: int
    ticks: int


def family_cpu_seconds(process_id: int, proc: Path = PROC) -> float | None:
    """Return the processor seconds of a process and its living descendants; None if unknown."""
    processes = _processes(proc)
    family = _family(process_id, processes)
    if not family:
        return None
    return sum(processes[number].ticks for number in family) / os.sysconf("SC_CLK_TCK")


def descendant_with(process_id: int, word: str, proc: Path = PROC) -> int | None:
    """Return a descendant whose command line has `word` as one of its arguments; None without."""
    for number in sorted(_family(process_id, _processes(proc)) - {process_id}):
        with contextlib.suppress(OSError):
            if word.encode() in (proc / str(number) / "cmdline").read_bytes().split(b"\0"):
                return number
    return None


def _family(process_id: int, processes: Mapping[int, "_Process"]) -> set[int]:
    """Return a living process and its living descendants."""
    family = {process_id} & processes.keys()
    # A child may have a lower number than its parent: repeat until nobody joins.
    while joining := {
        number
        for number, process in processes.items()
        if process.parent in family and number not in family
    }:
        family |= joining
    return family


def _processes(proc: Path) -> dict[int, _Process]:
    found = {}
    for stat in proc.glob("[0-9]*/stat"):
        try:
            text = stat.read_text("utf-8", errors="replace")
        except OSError:
            continue  # It has ended.
        # The name, in parentheses, may hold anything; state and parent follow it.
        fields = text.rpartition(")")[2].split()
        found[int(stat.parent.name)] = _Process(int(fields[1]), int(fields[11]) + int(fields[12]))
    return found
