"""The target model, its paged KV cache and the engine loop."""
