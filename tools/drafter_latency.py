"""What drafting gains where the drafter is some way off: through a proxy that delays.

`JAX_PLATFORMS=cpu python -m tools.drafter_latency eagle3 7`, for a drafter and so many rounds.
Plain decoding, a drafter of this host and one behind each delay answer in turn.
"""

import contextlib
import multiprocessing
import queue
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path

from tests.e2e.test_drafter_elsewhere import process_of
from tests.ports import free_ports

from blockdraft_bench.datasets import choose_samples, read_datasets
from blockdraft_client import Client, SpeculationParams

DELAYS_MS = (0.0, 0.2, 0.5, 1.0)
PROMPTS, MAX_TOKENS = 8, 64
# What latency costs shows where drafts are as long with it as without.
SERVING = (
    "--draft-policy fixed --no-prompt-lookup --recent-completions 0 "
    "--max-sequences 1 --max-step-tokens 32"
)
PLAIN, HERE = "plain", "drafter of this host, unix socket"

Record = tuple[int, float, int, tuple[int, ...]]  # timed tokens, seconds, verifications, token ids


def proxy(port: int, to: int, delay: "Synchronized[float]") -> None:
    """Pass bytes between two ports on, each so many seconds after it came."""

    def pass_on(source: socket.socket, sink: socket.socket) -> None:
        late: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()

        def write() -> None:
            with contextlib.suppress(OSError):
                while True:
                    due, chunk = late.get()
                    time.sleep(max(0.0, due - time.monotonic()))
                    sink.sendall(chunk)

        threading.Thread(target=write, daemon=True).start()
        with contextlib.suppress(OSError):
            while chunk := source.recv(1 << 20):
                late.put((time.monotonic() + delay.value, chunk))

    listener = socket.create_server(("127.0.0.1", port))
    while True:
        near, _ = listener.accept()
        far = socket.create_connection(("127.0.0.1", to))
        for source, sink in ((near, far), (far, near)):
            sink.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=pass_on, args=(source, sink), daemon=True).start()


@contextlib.contextmanager
def delayed(to: int) -> Iterator[tuple[int, "Synchronized[float]"]]:
    """Run a proxy; yields its port and its delay."""
    delay, port = multiprocessing.Value("d", 0.0), free_ports(1)
    process = multiprocessing.Process(target=proxy, args=(port, to, delay), daemon=True)
    process.start()
    try:
        yield port, delay
    finally:
        process.kill()


def round_trip_ms(delay_ms: float) -> float:
    """Return the median time of a byte to and fro through a proxy."""
    server = socket.create_server(("127.0.0.1", 0))
    with delayed(server.getsockname()[1]) as (port, delay):
        delay.value = delay_ms / 1e3
        while True:
            with contextlib.suppress(OSError):
                near = socket.create_connection(("127.0.0.1", port))
                break
        far, _ = server.accept()
        times = []
        for _ in range(200):
            start = time.perf_counter()
            for sender, receiver in ((near, far), (far, near)):
                sender.sendall(b"x")
                receiver.recv(1)
            times.append(time.perf_counter() - start)
            time.sleep(0.002)
    return 1e3 * statistics.median(times)


def answer(client: Client, prompt: str, *, drafts: bool) -> Record:
    """Return tokens and seconds after the first token, verifications, and all tokens."""
    asked = [{"role": "user", "content": prompt}]
    speculation = SpeculationParams(disabled=not drafts)
    completion = client.generate(asked, max_tokens=MAX_TOKENS, speculation=speculation)
    usage, tokens = completion.usage, tuple(completion.token_ids)
    return len(tokens) - 1, usage.decode_seconds, usage.verification_steps, tokens


def main(drafter: str, rounds: int) -> None:
    """Print medians over all completions, with the quartiles of their ratios to plain ones."""
    [dataset] = read_datasets(["starter"], None)
    prompts = [sample.text for sample in choose_samples(dataset.samples, PROMPTS, 0)]
    far, near, here = free_ports(1), free_ports(1), free_ports(1)
    configurations = (PLAIN, HERE, *DELAYS_MS)
    runs: dict[str | float, list[Record]] = {one: [] for one in configurations}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        port, delay = stack.enter_context(delayed(far))
        clients = []
        # One after the other: the second finds what the first has compiled.
        for listen, place in ((here, f"process --drafter {drafter}"), (near, f"127.0.0.1:{port}")):
            flags = f"{SERVING} --listen 127.0.0.1:{listen} --drafter-placement {place}"
            if listen == near:
                alone = f"--drafter {drafter} --listen 127.0.0.1:{far} --max-sequences 1"
                stack.enter_context(process_of("drafter", folder, alone))
            stack.enter_context(process_of("serve", folder, flags))
            client = stack.enter_context(Client(f"127.0.0.1:{listen}", timeout=600))
            client.wait_ready(1800)
            while client.model().drafter is None:
                time.sleep(0.5)
            answer(client, prompts[0], drafts=True)
            clients.append(client)
        for number in range(rounds * len(prompts)):
            first = number % len(configurations)
            for one in (*configurations[first:], *configurations[:first]):
                delay.value = one / 1e3 if isinstance(one, float) else 0.0
                client = clients[one != HERE]
                prompt = prompts[number % len(prompts)]
                runs[one].append(answer(client, prompt, drafts=one != PLAIN))
    for one, records in runs.items():
        speeds = [tokens / seconds for tokens, seconds, *_ in records]
        plain = [tokens / seconds for tokens, seconds, *_ in runs[PLAIN]]
        ratios = [fast / slow for fast, slow in zip(speeds, plain, strict=True)]
        low, median, high = statistics.quantiles(ratios)
        same = [record[3] for record in records] == [record[3] for record in runs[PLAIN]]
        tau = sum(record[0] for record in records) / sum(record[2] for record in records)
        trip = f", round trip {round_trip_ms(one):.2f} ms" if isinstance(one, float) else ""
        print(
            f"{one}: {statistics.median(speeds):.1f} tok/s, {median:.2f}x ({low:.2f}-{high:.2f}), "
            f"tau {tau:.2f}, identical {same}{trip}",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
