"""Products, norms, sums and attention on a CPU, in C++ whose sums have one order.

`kernels.cc` has the functions that XLA calls, `vectors.h` the sums, `products.h` and `attention.h`
the computations. `library` compiles and loads them, `calls` are the functions in JAX. Their callers
have a form in XLA for processes without the library.
"""
