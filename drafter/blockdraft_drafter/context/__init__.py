"""The drafter's memory of every sequence: keys and values of accepted positions.

`slots` knows which row belongs to which sequence and how long its context is, on the host;
`buffer` holds the rows on the device. `attention` is what draft layers call: by `portable`, plain
JAX that defines the result, or by `kernel`, a Pallas kernel for TPU; `sharding` divides their
heads over a mesh. It must not import a draft method.
"""
