"""Which form of product suits this processor, for each width of weight.

Which forms are batch-invariant, and which is fastest, depends on the processor in ways that cannot
be predicted (docs/adr/0043). So each width is tried once.
"""

import functools
import itertools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median

import jax
import jax.numpy as jnp
import jaxlib.version
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from blockdraft_models.cache import default_cache_dir, kept_measurement
from blockdraft_models.decoder.layer import Embedding, Linear
from blockdraft_models.decoder.products import PRODUCT_FORMS, SAFEST_FORM, ProductForm, project
from blockdraft_models.processor import this_processor

logger = logging.getLogger(__name__)

FILE_NAME = "product-forms.json"
MOST_ROWS = 128
# All counts that end or begin a range of padding, and some between.
_ROW_COUNTS = (*range(1, 10), 12, 15, 16, 17, 24, 31, 32, 33, 48, 63, 64, 65, 96, MOST_ROWS)
_TIMED_ROWS = (1, 8)
_TIMED_RUNS = 15
# Smaller weights take little time in any form, but trying all forms would take long.
_LEAST_ELEMENTS = 2**16
# What a form has to gain before it is taken instead of the safest one. Trials scatter by half as
# much, and where all forms of a model are one, their operands are padded once.
_LEAST_GAIN = 1.1
_COPIES_BYTES = 2**26
_CHAINED = 8

Product = Callable[[Float[Array, "rows in"]], Float[Array, "rows out"]]


def suit_processor(model: nnx.Module) -> tuple[str, ...]:
    """Have every linear map of a bfloat16 model multiply in the form that suits this CPU.

    The first time that a processor meets a width, it is tried, which takes seconds. Other platforms
    have a form of their own, and the processes of a slice, which must not differ, the safest.
    Returns the form of each width in words, such as "1536x576 weight/8".
    """
    if jax.default_backend() != "cpu" or jax.process_count() > 1:
        return ()
    found = {}
    for _, part in nnx.iter_modules(model):
        if isinstance(part, Linear | Embedding) and part.matrix.dtype in (jnp.bfloat16, jnp.int8):
            # Scanned layers have an axis more.
            outs, ins = part.matrix.shape[-2:]
            part.form = found[outs, ins] = suitable_form(outs, ins)
    return tuple(
        f"{outs}x{ins} {form}"
        for (outs, ins), form in sorted(found.items(), key=lambda item: item[0])
    )


def suitable_form(outs: int, ins: int) -> ProductForm:
    """Return the form in which this processor multiplies rows with a weight of [outs, ins]."""
    if outs * ins < _LEAST_ELEMENTS:
        return SAFEST_FORM
    return _suitable_form(default_cache_dir(), outs, ins)


# Kept in the process too: it must not change its mind where no file can be written.
@functools.cache
def _suitable_form(folder: Path, outs: int, ins: int) -> ProductForm:
    words = {str(form): form for form in PRODUCT_FORMS}
    key = f"{this_processor()}, jaxlib {jaxlib.version.__version__}, {outs}x{ins}"
    found = kept_measurement(
        folder / FILE_NAME, key, lambda: str(_try_forms(outs, ins)), lambda word: word in words
    )
    logger.info("products of %d x %d take the form %s on this CPU", outs, ins, found)
    return words[found]


def fastest_exact(
    seconds: Mapping[ProductForm, float], exact: Callable[[ProductForm], bool]
) -> ProductForm:
    """Return the fastest form that is batch-invariant, or else the safest.

    The fastest is tested first.
    """
    handicapped = {
        form: taken * (1.0 if form == SAFEST_FORM else _LEAST_GAIN)
        for form, taken in seconds.items()
    }
    ranking = sorted(handicapped, key=handicapped.__getitem__)
    return next(filter(exact, ranking), SAFEST_FORM)


def is_batch_invariant(product: Product, rows: Float[Array, "rows in"]) -> bool:
    """Return whether each row's product has the same bits beside all others and beside fewer."""
    together = np.asarray(product(rows))
    return all(
        np.array_equal(np.asarray(product(rows[:count])), together[:count])
        for count in _ROW_COUNTS
        if count < len(rows)
    )


def _try_forms(outs: int, ins: int) -> ProductForm:
    rng = np.random.default_rng(0)
    # A part of it again and again: billions of random numbers would take longer than all else.
    numbers = rng.standard_normal(min(outs * ins, 2**20 - 1), np.float32) * ins**-0.5
    weight = jnp.asarray(np.resize(numbers, (outs, ins)), jnp.bfloat16)
    rows = jnp.asarray(rng.standard_normal((MOST_ROWS, ins)), jnp.bfloat16)
    compiled = jax.jit(project, static_argnames=("dtype", "form"))

    def exact(form: ProductForm) -> bool:
        return is_batch_invariant(lambda x: compiled(x, weight, dtype="float32", form=form), rows)

    return fastest_exact(_seconds(weight, rows), exact)


def _seconds(
    weight: Float[Array, "out in"], rows: Float[Array, "rows in"]
) -> dict[ProductForm, float]:
    """Return what each form takes for 1 row and for 8, one after another in turn."""
    chain = jax.jit(_chain, static_argnames="form")
    # As in a decoder, a weight is not in the cache any more when it is needed again.
    copies = [weight + 0 for _ in range(max(1, _COPIES_BYTES // weight.nbytes))]
    cut = min(len(copies), _CHAINED)
    chains = itertools.cycle(copies[at : at + cut] for at in range(0, len(copies) - cut + 1, cut))
    taken: dict[tuple[ProductForm, int], list[float]] = {}
    for run in range(_TIMED_RUNS + 1):
        for form in PRODUCT_FORMS:
            for count in _TIMED_ROWS:
                started = time.perf_counter()
                chain(rows[:count], next(chains), form=form).block_until_ready()
                if run:  # the first one compiles
                    taken.setdefault((form, count), []).append(time.perf_counter() - started)
    return {
        form: sum(median(taken[form, count]) for count in _TIMED_ROWS) for form in PRODUCT_FORMS
    }


def _chain(x: Array, weights: Sequence[Array], form: ProductForm) -> Array:
    # With something between the products, as in a decoder: alone they are compiled otherwise.
    for weight in weights:
        x = x * jax.nn.sigmoid(project(x, weight, form=form)[:, :1])
    return x
