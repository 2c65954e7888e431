"""The choice of how a CPU multiplies: exact first, then fast, once for each processor."""

import logging
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import Array
from tests.models.tiny import tiny_config

from blockdraft_models import product_forms
from blockdraft_models.decoder.layer import Linear
from blockdraft_models.decoder.model import Decoder
from blockdraft_models.decoder.products import PRODUCT_FORMS, SAFEST_FORM, ProductForm, project
from blockdraft_models.product_forms import (
    MOST_ROWS,
    fastest_exact,
    is_batch_invariant,
    suit_processor,
    suitable_form,
)

FASTEST = ProductForm("rows", 2)
OUT, IN = 256, 512  # large enough to be tried


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BLOCKDRAFT_CACHE", str(tmp_path))
    product_forms._suitable_form.cache_clear()
    return tmp_path


@given(
    st.lists(st.floats(0.1, 10.0), min_size=len(PRODUCT_FORMS), max_size=len(PRODUCT_FORMS)),
    st.sets(st.sampled_from(PRODUCT_FORMS)),
)
def test_the_fastest_of_the_exact_ones_is_taken(
    taken: list[float], exact: set[ProductForm]
) -> None:
    seconds = dict(zip(PRODUCT_FORMS, taken, strict=True))
    chosen = fastest_exact(seconds, exact.__contains__)
    if not exact:
        assert chosen == SAFEST_FORM
        return
    assert chosen in exact
    # The safest one may be a little slower than the fastest.
    assert seconds[chosen] <= 1.1 * min(seconds[form] for form in exact) * (1 + 1e-9)


def inexact(rows: Array, wrong: range) -> Array:
    """Stand in for a product that adds up in another order when there are so many rows."""
    return rows.astype(np.float32) * np.float32(1 + 2.0**-23 * (len(rows) in wrong))


@pytest.mark.parametrize(
    "wrong", [range(1, 2), range(2, 3), range(3, 4), range(7, 8), range(9, 64)]
)
def test_other_bits_beside_fewer_rows_are_found(wrong: range) -> None:
    rows = jnp.asarray(np.random.default_rng(0).standard_normal((MOST_ROWS, IN), np.float32))
    assert not is_batch_invariant(partial(inexact, wrong=wrong), rows)
    assert is_batch_invariant(partial(inexact, wrong=range(0)), rows)


def test_a_fast_form_that_is_not_exact_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """The products of the fastest form are made inexact; the next fastest one is taken."""

    def product(x: Array, weight: Array, *, dtype: str, form: ProductForm) -> Array:
        wrong = range(3, 4) if form == FASTEST else range(0)
        return inexact(x, wrong).astype(dtype)

    order = (FASTEST, ProductForm("weight", 2))
    monkeypatch.setattr(product_forms, "_ROW_COUNTS", (1, 3, 8))
    seconds = {form: 1.0 if form in order else 2.0 for form in PRODUCT_FORMS} | {FASTEST: 0.5}
    monkeypatch.setattr(product_forms, "_seconds", lambda weight, rows: seconds)
    monkeypatch.setattr(product_forms, "project", product)
    assert suitable_form(OUT, IN) == ProductForm("weight", 2)


def test_each_width_is_tried_once(
    cache: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(product_forms, "_try_forms", lambda outs, ins: FASTEST)
    with caplog.at_level(logging.INFO):
        assert suitable_form(OUT, IN) == suitable_form(OUT, IN) == FASTEST
    assert caplog.messages == [f"products of {OUT} x {IN} take the form rows/2 on this CPU"]
    kept = (cache / product_forms.FILE_NAME).read_text()
    assert f'{OUT}x{IN}": "rows/2"' in kept
    # Another process takes what is kept.
    (cache / product_forms.FILE_NAME).write_text(kept.replace('"rows/2"', '"weight/4"'))
    product_forms._suitable_form.cache_clear()
    assert suitable_form(OUT, IN) == ProductForm("weight", 4)


def test_an_unknown_form_is_replaced(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product_forms, "_try_forms", lambda outs, ins: FASTEST)
    (cache / product_forms.FILE_NAME).write_text('{"another processor": "columns/3"}')
    assert suitable_form(OUT, IN) == FASTEST
    assert "columns/3" not in (cache / product_forms.FILE_NAME).read_text()


def test_the_chosen_form_is_batch_invariant_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """A real trial, judged with other numbers; at fewer counts, since each is compiled."""
    monkeypatch.setattr(product_forms, "_ROW_COUNTS", (1, 3, 8, 9, 65))
    monkeypatch.setattr(product_forms, "_TIMED_RUNS", 2)
    monkeypatch.setattr(product_forms, "_CHAINED", 2)
    outs, ins = 192, 576
    rng = np.random.default_rng(1)
    weight = jnp.asarray(rng.standard_normal((outs, ins)), jnp.bfloat16)
    rows = jnp.asarray(rng.standard_normal((MOST_ROWS, ins)), jnp.bfloat16)
    form = suitable_form(outs, ins)
    assert form in PRODUCT_FORMS
    assert is_batch_invariant(
        jax.jit(partial(project, weight=weight, dtype="float32", form=form)), rows
    )


def test_a_model_takes_the_forms_of_its_widths(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[tuple[int, int], ProductForm] = {}

    def choose(outs: int, ins: int) -> ProductForm:
        return asked.setdefault((outs, ins), PRODUCT_FORMS[len(asked) % len(PRODUCT_FORMS)])

    monkeypatch.setattr(product_forms, "suitable_form", choose)
    decoder = Decoder(tiny_config(), dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    words = suit_processor(decoder)
    assert list(words) == [f"{outs}x{ins} {asked[outs, ins]}" for outs, ins in sorted(asked)]
    for _, part in nnx.iter_modules(decoder):
        if isinstance(part, Linear):
            assert f"{part.weight.shape[0]}x{part.weight.shape[1]} {part.form}" in words
    assert decoder.embedding.form in asked.values()


def test_other_dtypes_and_platforms_have_no_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    assert suit_processor(Decoder(tiny_config(), dtype=jnp.float32, rngs=nnx.Rngs(0))) == ()
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    assert suit_processor(Decoder(tiny_config(), dtype=jnp.bfloat16, rngs=nnx.Rngs(0))) == ()
