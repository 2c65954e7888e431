"""A program that can be asked like a peer, and answers at once."""

import sys
from pathlib import Path

SCRIPT = f"""#!{sys.executable}
import json, sys
print(json.dumps({{"fake": "1.0"}}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if asked["prompt"] == [13]:
        sys.exit("unlucky")
    tokens = [100 + i + asked.get("lookup_tokens", 0) for i in range(asked["max_tokens"])]
    # Two tokens at a time.
    seconds = [0.25 + 0.5 * (i // 2) for i in range(len(tokens))]
    print(json.dumps({{"tokens": tokens, "seconds": seconds}}), flush=True)
"""


def write_fake_peer(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(SCRIPT, encoding="utf-8")
    path.chmod(0o755)
    return path
