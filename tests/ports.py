"""Free ports of the loopback interface."""

import random
import socket

# Below those that systems give to whoever asks for any: a process that is started now binds its
# port seconds later, and other tests open hundreds of connections meanwhile.
FIRST, LAST = 15_000, 30_000


def free_ports(count: int) -> int:
    """Return the first of `count` neighbouring free ports."""
    while True:
        # Not seeded: tests that run at the same time must not draw the same.
        first = random.SystemRandom().randrange(FIRST, LAST - count)
        try:
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return first
