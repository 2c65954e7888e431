"""Many small arrays as one of 32-bit words.

Each array that a program takes is sent to every device by itself, on the thread that schedules
(docs/adr/0062).
"""

from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int32

Tree = TypeVar("Tree")

Words = Int32[np.ndarray, " words"]

_WORD_BYTES = 4


def to_words(tree: object) -> Words:
    """Return the elements of NumPy arrays of 32 bits or of booleans, one array after another."""
    return np.concatenate([_as_words(leaf) for leaf in jax.tree.leaves(tree)])


def _as_words(array: np.ndarray) -> Words:
    if array.dtype == np.bool_:
        array = array.astype(np.int32)
    if array.dtype.itemsize != _WORD_BYTES:
        raise ValueError(f"elements must have 32 bits, not those of {array.dtype}")
    return array.view(np.int32).ravel()


def word_count(like: object) -> int:
    """Return the number of words that `to_words` makes of arrays of these shapes."""
    return sum(leaf.size for leaf in jax.tree.leaves(like))


def from_words(words: Int32[Array, " words"], like: Tree) -> Tree:
    """Return the arrays of `to_words`, inside a program, in the shapes and types of `like`."""
    leaves, structure = jax.tree.flatten(like)
    arrays, start = [], 0
    for leaf in leaves:
        part = words[start : start + leaf.size].reshape(leaf.shape)
        start += leaf.size
        is_flag = leaf.dtype == jnp.bool_
        arrays.append(part != 0 if is_flag else jax.lax.bitcast_convert_type(part, leaf.dtype))
    tree: Tree = jax.tree.unflatten(structure, arrays)
    return tree
