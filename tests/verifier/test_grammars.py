"""Grammars of requests: what is compiled, what is refused and how, and what stays bounded."""

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import grpc
import pytest
from llguidance import LLMatcher, LLTokenizer
from tests.models.builders import random_decoder
from tests.models.tiny import tiny_config, write_hf_checkpoint
from tests.models.tokenizer.sentencepiece import KINDS, described, write_tokenizer
from tests.patience import PATIENCE_SECONDS
from tests.verifier.grammars import END, GRAMMARS, choice_of, text_grammar, tiny_grammars

from blockdraft_models.errors import TokenizerError
from blockdraft_models.tokenizer.tokenizer import load_tokenizer
from blockdraft_runtime.status import ServiceError
from blockdraft_verifier.grammars import compilation as grammars
from blockdraft_verifier.grammars import compiler as module
from blockdraft_verifier.grammars.compilation import MAX_GRAMMAR_BYTES, tokenizer_of
from blockdraft_verifier.grammars.compiler import GrammarCompiler


def chain(length: int) -> str:
    """Return a schema in which one reference follows another."""
    parts = {f"a{i}": {"properties": {"x": {"$ref": f"#/$defs/a{i + 1}"}}} for i in range(length)}
    return text_grammar({"$ref": "#/$defs/a0", "$defs": {**parts, f"a{length}": {}}})


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return tiny_grammars()


async def refused(compiler: GrammarCompiler, grammar: str) -> str:
    with pytest.raises(ServiceError) as caught:
        await compiler.compile(grammar)
    assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.field == "sampling.constraint"
    return caught.value.message


def of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def requiring(**properties: Any) -> dict[str, Any]:
    return {**of(**properties), "required": list(properties)}


def endless_pair() -> dict[str, Any]:
    """Return definitions of which each demands the other."""
    x, y = ({"anyOf": [requiring(v={"$ref": f"#/$defs/{name}"})]} for name in "yx")
    return {"$defs": {"x": x, "y": y}}


def after_a_thought(lark: str) -> str:
    main = {"name": "main", "lark_grammar": 'start: thought @other\nthought[lazy]: /.*/ "!"'}
    return json.dumps({"grammars": [main, {"name": "other", "lark_grammar": lark}]})


def nested(depth: int) -> dict[str, Any]:
    return {"anyOf": [nested(depth - 1)]} if depth else {}


UNIQUE = {"type": "array", "uniqueItems": True}


@pytest.mark.parametrize(
    ("grammar", "said"),
    [
        (text_grammar(of(a={}, b=of(c={"type": "strin"}))), "strin at #/properties/b/properties/c"),
        (text_grammar(of(**{"a/b~": UNIQUE})), '["uniqueItems"] at #/properties/a~1b~0'),
        (text_grammar({"anyOf": [{}, UNIQUE], "items": UNIQUE}), '["uniqueItems"] at #/'),
        # Where an alternative allowed anything, its neighbours would not matter.
        (
            text_grammar({"anyOf": [of(a={}), of(a={"type": "string", "pattern": "(a"})]}),
            "at #/anyOf/1/properties/a",
        ),
        (text_grammar(nested(300)), "recursion limit exceeded"),
        (text_grammar({"$defs": {"x": UNIQUE}, **of(q={"$ref": "#/$defs/x"})}), "at #/$defs/x"),
        (text_grammar({"$ref": "#/nowhere"}), "'/nowhere' does not exist at #"),
        (text_grammar({"$ref": "#"}), "no output is possible at #"),
        # What allows nothing, or nothing that ends.
        (text_grammar({"enum": []}), "anyOf is empty at #"),
        (text_grammar({"type": "string", "minLength": 5, "maxLength": 2}), "maxLength (2) at #"),
        (text_grammar({"allOf": [{"type": "string"}, {"type": "null"}]}), "types at #/allOf/0"),
        (text_grammar(requiring(a=False)), "'a' is unsatisfiable at #/properties/a"),
        (text_grammar(requiring(a={"$ref": "#"})), "no value ends at #/properties/a"),
        (
            text_grammar({"type": "array", "minItems": 1, "items": {"$ref": "#"}}),
            "no value ends at #/items",
        ),
        (
            text_grammar(
                of(b=requiring(a={"$ref": "#/$defs/x"})) | {"required": ["b"]} | endless_pair()
            ),
            "no value ends at #/$defs/",
        ),
        (text_grammar(lark=r"start: /a[^\s\S]/"), "no output is possible"),
        (after_a_thought(r"start: /[^\s\S]/"), "no output is possible"),
        (after_a_thought("start: A\nA: /a/ & /b/"), "no output is possible"),
        (text_grammar({"type": "string", "pattern": "(a"}), "unclosed group at #"),
        (text_grammar({"items": [{}, UNIQUE]}), '["uniqueItems"] at #/items/1'),
        (text_grammar(False), "schema is false at #"),
        (text_grammar(5), "must be an object or boolean at #"),
        (text_grammar(lark="start: a\na[max_tokens=3]: /x+/"), "are not supported"),
        (json.dumps({"grammars": [{"json_schema": {}}], "max_tokens": 5}), "no list of grammars"),
        (text_grammar(lark='start: "a" <|im_end|> "b"'), "must not name tokens"),
        (text_grammar(lark='start: "a" <[258]> "b"'), "must not name tokens"),
        (text_grammar(lark='start: "a" <[250-260]> "b"'), "must not name tokens"),
        (text_grammar(lark='start: "a" b'), 'at 1(8): unknown name: "b"'),
        (text_grammar(lark="start: start"), "no output is possible"),
        (text_grammar(lark="start: <|nothing|>"), "unknown special token"),
        (choice_of(["x" * MAX_GRAMMAR_BYTES]), f"more than {MAX_GRAMMAR_BYTES} bytes"),
        *(
            (text, "no list of grammars")
            for text in ("", "{}", "[1]", '{"grammars": []}', "[" * 9999)
        ),
    ],
)
async def test_what_cannot_be_used_is_refused_by_its_place(
    compiler: GrammarCompiler, grammar: str, said: str
) -> None:
    assert said in await refused(compiler, grammar)


@pytest.mark.parametrize(
    "schema",
    [
        requiring(a={"anyOf": [{"$ref": "#"}, {"type": "null"}]}),
        requiring(
            a={"type": ["object", "null"], **requiring(b={"$ref": "#/properties/a"})}
            | {"type": ["object", "null"]}
        ),
        {**requiring(a={"$ref": "#/$defs/b~1c"}), "$defs": {"b/c": of(d={"$ref": "#"})}},
        {"type": "array", "prefixItems": [{}], "minItems": 1, "items": {"$ref": "#"}},
    ],
)
async def test_a_recursion_that_may_end_is_compiled(
    compiler: GrammarCompiler, schema: dict[str, Any]
) -> None:
    assert not (await compiler.compile(text_grammar(schema))).is_error()


async def test_a_long_chain_of_references_does_not_overflow_the_stack() -> None:
    # In a thread of the usual stack, the process would end here.
    assert not (await tiny_grammars().compile(chain(1200))).is_error()


async def test_each_grammar_is_compiled_once_and_the_latest_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled: list[str] = []

    def compiling(tokenizer: LLTokenizer, grammar: str, **options: Any) -> LLMatcher:
        compiled.append(grammar)
        return LLMatcher(tokenizer, grammar, **options)

    monkeypatch.setattr(grammars, "LLMatcher", compiling)
    monkeypatch.setattr(module, "_KEPT", 3)
    compiler = tiny_grammars()
    first = await asyncio.gather(*(compiler.compile(GRAMMARS[0]) for _ in range(5)))
    assert len(set(map(id, first))) == len(compiled) == 1
    for grammar in GRAMMARS[1:3]:
        await compiler.compile(grammar)
    assert await compiler.compile(GRAMMARS[0]) is first[0]
    await compiler.compile(GRAMMARS[3])  # in place of the second
    assert await compiler.compile(GRAMMARS[0]) is first[0]
    assert len(compiled) == 4
    await compiler.compile(GRAMMARS[1])
    assert len(compiled) == 5


class Gate:
    """Lets grammars compile only once it is open, and remembers which began."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.begun: list[str] = []

    def __call__(self, tokenizer: LLTokenizer, grammar: str, **options: Any) -> LLMatcher:
        self.begun.append(grammar)
        assert self.opened.wait(PATIENCE_SECONDS)
        return LLMatcher(tokenizer, grammar, **options)

    async def until_begun(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(self.begun) < count:
                await asyncio.sleep(0.005)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    gate = Gate()
    monkeypatch.setattr(grammars, "LLMatcher", gate)
    return gate


async def test_grammars_that_nobody_waits_for_are_not_compiled_and_tenants_take_turns(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = tiny_grammars()

    def compiling(tenant: bytes, *names: str) -> list[asyncio.Future[LLMatcher]]:
        texts = [choice_of([name]) for name in names]
        return [asyncio.ensure_future(compiler.compile(text, tenant)) for text in texts]

    first = compiling(b"a", "a0", "a1")  # as many as there are threads
    await gate.until_begun(2)
    abandoned = compiling(b"a", *(f"x{number}" for number in range(20)))
    kept = compiling(b"a", "a2", "a3", "a4") + compiling(b"b", "b0", "b1")
    await asyncio.sleep(0)
    for one in abandoned:
        one.cancel()
    await asyncio.wait(abandoned)
    monkeypatch.setattr(module, "MAX_WAITING", 3)
    for tenant, refused in ((b"a", True), (b"b", False)):
        [more] = compiling(tenant, "more")
        await asyncio.sleep(0)
        if refused:
            with pytest.raises(ServiceError, match="too many constraints") as caught:
                await more
            assert caught.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        kept.append(more) if not refused else None
    gate.opened.set()
    await asyncio.gather(*first, *kept)
    order = [json.loads(text)["grammars"][0]["lark_grammar"][8:-1] for text in gate.begun]
    assert sorted(order) == ["a0", "a1", "a2", "a3", "a4", "b0", "b1", "more"]
    # Two work at a time, so that neighbours may change places.
    assert order.index("b0") < order.index("a4")
    assert order.index("b1") < order.index("a4") + 2


async def test_who_comes_as_the_last_caller_leaves_is_served(gate: Gate) -> None:
    compiler = tiny_grammars()
    leaving = asyncio.ensure_future(compiler.compile(GRAMMARS[0]))
    await gate.until_begun(1)
    leaving.cancel()
    coming = asyncio.ensure_future(compiler.compile(GRAMMARS[0]))
    gate.opened.set()
    assert await coming is not None
    assert leaving.cancelled()


async def test_a_grammar_that_is_abandoned_while_it_is_tried_is_not_compiled(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = threading.Event()

    def trial(grammar: str) -> None:
        tried.set()
        assert gate.opened.wait(PATIENCE_SECONDS)

    monkeypatch.setattr(module, "GrammarTrial", lambda tokenizer: trial)
    compiler = tiny_grammars()
    leaving = asyncio.ensure_future(compiler.compile(GRAMMARS[0]))
    await asyncio.to_thread(tried.wait, PATIENCE_SECONDS)
    leaving.cancel()
    await asyncio.wait([leaving])
    gate.opened.set()
    await compiler.compile(GRAMMARS[1])
    await compiler.compile(GRAMMARS[2])
    assert gate.begun == list(GRAMMARS[1:3])


async def test_a_grammar_that_waits_too_long_is_refused_and_disturbs_no_other(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = tiny_grammars()
    monkeypatch.setattr(module, "MAX_COMPILE_SECONDS", 0.05)
    with pytest.raises(ServiceError, match="waited") as caught:
        await compiler.compile(GRAMMARS[0])
    assert caught.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    # A caller that goes away leaves it to others.
    monkeypatch.setattr(module, "MAX_COMPILE_SECONDS", 60)
    leaving = asyncio.ensure_future(compiler.compile(GRAMMARS[0]))
    staying = asyncio.ensure_future(compiler.compile(GRAMMARS[0]))
    await asyncio.sleep(0)
    leaving.cancel()
    gate.opened.set()
    assert not (await staying).is_error()


async def test_a_target_without_a_usable_tokenizer_takes_no_grammar(tmp_path: Path) -> None:
    def nothing() -> LLTokenizer:
        raise TokenizerError("there is none")

    with pytest.raises(ServiceError, match="there is none") as caught:
        await GrammarCompiler(nothing).compile(GRAMMARS[0])
    assert caught.value.code is grpc.StatusCode.FAILED_PRECONDITION
    assert caught.value.reason == "CONSTRAINTS_UNSUPPORTED"
    with pytest.raises(TokenizerError):
        tokenizer_of(str(tmp_path), 300)


def test_the_tokenizer_of_a_target_has_the_vocabulary_of_the_model(tmp_path: Path) -> None:
    write_hf_checkpoint(random_decoder(tiny_config(vocab_size=270)), tmp_path)
    # As Qwen's: added, but text.
    file = tmp_path / "tokenizer.json"
    described = json.loads(file.read_text())
    described["added_tokens"][-1] |= {"content": "<tool_call>", "special": False}
    file.write_text(json.dumps(described))
    # The model's vocabulary may be padded beyond the tokenizer's.
    tokenizer = tokenizer_of(str(tmp_path), 300)
    assert tokenizer.vocab_size == 300
    anything = LLMatcher(tokenizer, text_grammar(lark=r"start: /(.|\n)*/"))
    allowed = int.from_bytes(anything.compute_bitmask(), "little")
    # Bytes that begin a character, the end, and the token that is text; no control token, and none
    # that is not there.
    called = described["added_tokens"][-1]["id"]
    bytes_that_begin = {*range(0x80), *range(0xC2, 0xF5)}
    assert {t for t in range(320) if allowed >> t & 1} == bytes_that_begin | {END, called}
    calling = LLMatcher(tokenizer, text_grammar(lark='start: "<tool_call>" /x*/'))
    assert calling.compute_ff_tokens() == [called]


@pytest.mark.parametrize("text", ["[stop]", "a[max_tokens=3]: b"])
async def test_what_looks_like_an_attribute_may_be_text(text: str) -> None:
    assert not (await tiny_grammars().compile(choice_of([text, "other"]))).is_error()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", ["he", " he", "he  he wor é€", "▁he", "\the {"])
def test_sentencepieces_tokens_are_the_bytes_of_the_text(
    tmp_path: Path, kind: str, text: str
) -> None:
    directory = write_tokenizer(tmp_path, described(kind))
    tokens = load_tokenizer(directory)
    allowing = LLMatcher(tokenizer_of(str(directory), 300), choice_of([text]))
    forced = allowing.compute_ff_tokens()
    assert forced == tokens.encode_inner(text)
    assert allowing.try_consume_tokens(forced) == len(forced)
    assert allowing.is_accepting()
    assert tokens.decode(forced, continues=True) == text


def test_all_tokens_of_the_same_bytes_are_allowed(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(str(write_tokenizer(tmp_path, described("llama"))), 300)
    matcher = LLMatcher(tokenizer, text_grammar(lark=r"start: / ?[{]/"))
    allowed = int.from_bytes(matcher.compute_bitmask(), "little")
    vocabulary = described("llama")["model"]["vocab"]
    expected = {vocabulary[token] for token in ("▁", "<0x20>", "{", "<0x7B>", "▁{")}
    assert {token for token in range(320) if allowed >> token & 1} == expected
