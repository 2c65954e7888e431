"""One step of the target on its devices: from a plan to choices and accepted lengths.

Read `step` (what is computed, and how it is compiled), `accept` (what the target chooses, and how
much of a draft agrees with it), `paged_attention` with its two implementations
(`portable_attention`, plain JAX that runs anywhere and defines the result, and `kernel_attention`,
JAX's Pallas kernel for TPU), `cache` and `feature_form` (keys, values, features), then `buckets`
and `packing` (few static shapes, none too short) and `runner` (compile every shape before serving,
then only run). It must not import `engine` or `drafting`, and knows no gRPC.
"""
