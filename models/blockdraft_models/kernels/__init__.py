"""Products, norms, sums and attention on a CPU, in C++ whose sums have one order.

`kernels.cc` is what XLA calls, `vectors.h` how it adds up, `products.h` and `attention.h` what is
computed. `library` compiles and loads it, `calls` are its functions in JAX. What calls them has a
form in XLA for where it is not there.
"""
