"""Finds words of our own where the field has a term, in pages, protos and code.

`make lint` runs it. Decisions (docs/adr) are history and keep their words.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]

# Patterns of the words to avoid, and the words to write instead.
TERMS = {
    r"round(s|ed|ing)?[ _]alike|rounding contract|contract of rounding": "batch-invariant",
    r"(?<!process)(?<!\bkey)(?<!index)(?<!prompt)(?<!prompt.)lookups?(?!error)": "prompt lookup",
    r"\bnoisy? of the target|the target's( own)? noise|shared noise": "Gumbel noise",
    r"\bsiblings?\b": "tree drafting",
    r"\b(front )?doors?\b": "API server, front end",
    r"(?<![a-z])propos(al|e)s?(?![a-z])|(?<![a-z])(?<!spec_num_)proposed(?![a-z])": "draft",
    r"drafter('s|s')? contexts?\b(?! (length|==))|contexts of the drafter": "draft KV cache",
    r"(?<![a-z])recordings?(?![a-z])(?! rules?)": "training sample",
    r"\b(next|first|last|each|no|of|two|further|held-out) looks?\b(?! (at|for|like|into|up))": (
        "evaluation, health check"
    ),
    r"\bexchange of (certificates|keys)|(certificate|key) exchange": "rotation",
    r"\bms per token\b|ms/token": "time per output token (TPOT)",
    r"\bgaps? between (messages|tokens)|\btoken gaps?\b|\bgap_seconds\b": "inter-token latency",
}
# Identifiers of the product that do not say what they name.
BARE_NAMES = {
    *("asked", "each", "found", "given", "held", "how", "kept", "known", "lasting", "made", "most"),
    *("one", "other", "others", "own", "said", "taken", "told", "untold", "wanted", "what"),
}
# Openings of docstrings that do not say what they describe.
OPENING = re.compile(r"(Return|Yield|Give) (it|that|those|what|which)\b|(That|Those|What|Which)\b")
PATTERNS = {re.compile(pattern, re.I): term for pattern, term in TERMS.items()}
SUFFIXES = (".md", ".py", ".proto", ".yaml", ".json", ".toml")
# Themselves, what is generated of others, and history.
LEFT_OUT = ("docs/adr/", "docs/terms.py", "protos/blockdraft_protos/", "CHANGELOG.md")
# The openings of prompts are in them, which are no words of ours.
MANIFESTS = ".manifest.json"
# A term may be broken at the end of a line.
BROKEN = re.compile(r"(prompt)[\s#/*\"]*\n[\s#/*\"]*(?=lookup)", re.I)


def main() -> int:
    """Print every use of a word to avoid; return the exit code."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    wrong = 0
    for name in listed.stdout.splitlines():
        path = ROOT / name
        if not name.endswith(SUFFIXES) or name.startswith(LEFT_OUT) or not path.is_file():
            continue
        if name.endswith(MANIFESTS):
            continue
        source = path.read_text("utf-8")
        if name.endswith(".py") and not name.startswith(("tests/", "tools/")):
            for number, words in vague_words(source):
                print(f"{name}:{number}: {words!r}: say what it is", file=sys.stderr)
                wrong += 1
        text = BROKEN.sub(r"\n\1 ", source)
        for number, line in enumerate(text.splitlines(), 1):
            # The target of a link is no word of the page.
            words = re.sub(r"\]\([^)]*\)", "]", line)
            for pattern, term in PATTERNS.items():
                if match := pattern.search(words):
                    print(f"{name}:{number}: {match[0]!r}: say {term}", file=sys.stderr)
                    wrong += 1
    return 1 if wrong else 0


def vague_words(source: str) -> Iterator[tuple[int, str]]:
    """Yield each line with an identifier or an opening that does not say what it is."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node) or ""
            if opening := OPENING.match(docstring):
                yield getattr(node, "lineno", 1), opening[0]
        for field in ("id", "arg", "attr", "name"):
            identifier = getattr(node, field, None)
            if isinstance(identifier, str) and identifier.strip("_") in BARE_NAMES:
                yield getattr(node, "lineno", 0), identifier


if __name__ == "__main__":
    sys.exit(main())
