"""One step of the target on its devices: from a plan to choices and accepted lengths.

Read `step` (what is computed, and how it is compiled), `accept` (what the target chooses, and how
much of a draft agrees with it), `paged_attention` with its implementations (`portable_attention`,
plain JAX that runs anywhere and defines the result; for TPU `kernel_attention`, JAX's Pallas
kernel, and `tile_kernel`, our own for what that cannot), `cache` and `feature_form` (keys, values,
features), then `buckets` and `packing` (few static shapes, none too short) and `runner` (compile
every shape before serving, then only run; `step_runner` is what the engine sees of it). It must not
import `engine` or `drafting`, and knows no gRPC.
"""
