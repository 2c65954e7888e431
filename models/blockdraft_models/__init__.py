"""Model definitions, checkpoint loading and tokenizers; no gRPC, and no jax at import."""
