"""Small files of results of every measurement, with numbers a test can foresee."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Json = dict[str, Any]
# As measurements wrote them before intervals said how many answers they rest on.
EARLIER = Path(__file__).parent / "earlier"


def earlier(benchmark: str) -> Json:
    content: Json = json.loads((EARLIER / f"{benchmark}.json").read_text("utf-8"))
    return content


def acceptance() -> Json:
    report = earlier("acceptance")
    [base] = report["results"]

    def row(dataset: str, temperature: float, steps: int, shares: list[float | None]) -> Json:
        unknown = [None] * len(shares)
        return {
            **base, "dataset": dataset, "temperature": temperature, "samples": 8, "steps": steps,
            "acceptance_length": 1.7, "acceptance_length_ci95": [1.5, 2.0],
            "acceptance_per_position": shares, "acceptance_per_position_ci95": unknown,
        }  # fmt: skip

    results = [
        row("gsm8k", 0.0, 30, [0.6, 0.3]),
        row("math500", 0.0, 10, [0.2, 0.1]),
        row("humaneval", 0.0, 10, [0.9, 0.8]),
        row("mine", 0.0, 0, [None, None]),
        row("gsm8k", 1.0, 30, [0.1, 0.0]),
    ]
    return {**report, "draft_length": 2, "results": results}


def decode() -> Json:
    report = earlier("decode")
    [base] = report["results"]

    def row(dataset: str, method: str, speedup: float) -> Json:
        return {
            **base, "dataset": dataset, "method": method, "samples": 8,
            "tokens_per_second": 20.0, "ttft_seconds": 0.25, "speedup": speedup,
            "speedup_ci95": [speedup - 0.1, speedup + 0.1],
            "acceptance_length": 2.5, "acceptance_length_ci95": None,
        }  # fmt: skip

    rows = [row("gsm8k", "plain", 1.0), row("gsm8k", "dflash", 1.5), row("gsm8k", "eagle3", 1.25)]
    [mean] = report["average"]
    means = [{**mean, "method": row["method"]} for row in rows]
    return {**report, "results": rows, "average": means}


def kflat() -> Json:
    report = earlier("kflat")
    [base], [curve] = report["results"], report["curves"]
    name = {"device": "cpu", "model": "tiny", "modelled": False, "batch": 1, "context_tokens": 64}

    def rows(device: str, modelled: bool, batch: int, times: list[float]) -> list[Json]:
        return [
            {
                **base, **name, "device": device, "modelled": modelled, "batch": batch,
                "tokens": batch << power, "seconds": time, "relative_to_one": time / times[0],
            }
            for power, time in enumerate(times)
        ]  # fmt: skip

    return {
        **report,
        "curves": [{**curve, **name, "explanation": "Verifying is free up to 2 tokens."}],
        "results": [
            *rows("cpu", False, 2, [2.0, 4.0]),
            *rows("cpu", False, 1, [1.0, 1.0, 3.0]),
            *rows("TPU v5p", True, 1, [0.5, 0.5, 0.5]),
        ],
    }


def scaling() -> Json:
    report = earlier("scaling")
    [base], [curve] = report["acceptance_lengths"], report["results"]
    name = {"device": "cpu", "model": "tiny", "modelled": False, "batch": 1, "context_tokens": 64}
    [found] = base["measured"]

    def length(block_size: int, value: float, measured: list[float]) -> Json:
        lengths = [
            {**found, "source": f"acceptance {i}", "acceptance_length": v,
             "acceptance_length_ci95": None, "cut_short": False}
            for i, v in enumerate(measured)
        ]  # fmt: skip
        return {
            **base, "block_size": block_size, "acceptance_length": value,
            "acceptance_length_ci95": [value - 0.1, value + 0.1], "measured": lengths,
        }  # fmt: skip

    sizes = [
        {"block_size": 4, "verify_seconds": 1.0, "speed_up": 1.4},
        {"block_size": 8, "verify_seconds": None, "speed_up": None},
    ]
    return {
        **report,
        "acceptance_lengths": [length(4, 1.9, []), length(8, 2.2, [2.1, 2.3])],
        "results": [{**curve, **name, "predictions": sizes, "conclusion": "Better drafts pay."}],
    }


def serve() -> Json:
    report = earlier("serve")
    [base], [split] = report["results"], report["split"]

    def row(load: float, method: str, latency: float | None) -> Json:
        times = None if latency is None else dict.fromkeys(("p50", "p95", "p99", "mean"), latency)
        return {
            **base, "load": load, "method": method, "requests": 8,
            "output_tokens_per_second": 30.0, "ttft_seconds": times, "tpot_seconds": times,
            "latency_seconds": times, "goodput_requests_per_second": None,
        }  # fmt: skip

    compared = {
        **split, "groups": 8, "ratio": 0.95, "ratio_ci95": [0.9, 1.0],
        "one_process": {**split["one_process"], "tokens_per_second": 20.0},
        "three_processes": {**split["three_processes"], "tokens_per_second": 19.0},
    }  # fmt: skip
    rows = [row(1, "plain", 2.0), row(1, "drafted", 1.5), row(2.0, "plain", None)]
    return {**report, "results": rows, "split": [compared]}


def peers() -> Json:
    def around(median: float, distance: float) -> Json:
        return {"median": median, "quartiles": [median - distance, median + distance]}

    def row(peer: str, dtype: str, ratio: float) -> Json:
        return {
            "peer": peer, "variant": "plain", "dtype": dtype, "tokens": 90,
            "tokens_per_second": around(20.0 / ratio, 1.0), "plain_ratio": around(ratio, 0.1),
            "drafted_ratio": around(1.5 * ratio, 0.1), "ttft_seconds": 0.25,
            "identical_share": 0.5,
        }  # fmt: skip

    return {
        "benchmark": "peers", "command": "blockdraft bench something", "commit": "abc",
        "versions": {}, "hardware": {"cpu": "a processor", "cores": 2, "accelerator": None},
        "target": {"name": "tiny", "fingerprint": "0123456789abcdef"},
        "drafter": {"method": "eagle3", "fingerprint": "f", "trained": True}, "block_size": 8,
        "draft_policy": "adaptive", "prompts": 4, "rounds": 7, "max_tokens": 13,
        "max_prompt_tokens": 64, "threads": 2, "seed": 0,
        "peer_versions": {"llama.cpp": "v0.5.0"},
        "results": [row("blockdraft", "bfloat16", 1.0), row("llama.cpp", "Q8_0", 0.75)],
    }  # fmt: skip


MAKERS: dict[str, Callable[[], Json]] = {
    made()["benchmark"]: made for made in (acceptance, decode, kflat, scaling, serve, peers)
}
