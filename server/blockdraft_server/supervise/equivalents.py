"""Equivalents here of the flags of vLLM, SGLang and llama.cpp's server."""

from collections.abc import Mapping

_ALL_CHIPS = "leave it out: a target uses all chips of its host (--tpu-split for fewer)"
_ALWAYS = "leave it out: it is always so"
_COPIES = "leave it out: give each copy a host, and name all of them to `blockdraft server`"
_FROM_THE_CHECKPOINT = "leave it out: the checkpoint and its chat template say it"
_MEMORY = "--kv-cache-memory SIZE; without it, what the device has left"
_PER_REQUEST = "leave it out: a request sets it"
_THREADS = "leave it out: kernels use all cores that the process may use (taskset for fewer)"
_WIDTH = "leave it out: each step takes the draft length that pays"

_BY_ANSWER: Mapping[str, tuple[str, ...]] = {
    "--openai 127.0.0.1:{}": ("--port",),
    "--openai {}:PORT": ("--host",),
    "--target {}": ("-m", "--model-id"),
    "--model-name {}": ("--served-model-name", "--alias", "-a"),
    "--max-model-len {}": ("-c", "--ctx-size", "--context-length"),
    "--max-sequences {}": (
        *("-np", "--parallel", "--max-num-seqs", "--max-running-requests"),
        "--max-concurrent-requests",
    ),
    "--max-step-tokens {}": (
        *("-b", "-ub", "--batch-size", "--ubatch-size", "--max-num-batched-tokens"),
        "--chunked-prefill-size",
    ),
    "--drafter {}": ("-md", "--model-draft", "--speculative-draft-model-path"),
    "--drafter NAME": ("--speculative-config", "--speculative-algorithm", "-sc"),
    "--api-key-file FILE, with keys of `blockdraft keys new`": ("--api-key",),
    "--tls-cert {}": ("--ssl-certfile", "--ssl-cert-file"),
    "--tls-key {}": ("--ssl-keyfile", "--ssl-key-file"),
    "--weights int8": ("--quantization", "-q"),
    "--kv-cache-dtype fp8": ("-ctk", "--cache-type-k", "-ctv", "--cache-type-v"),
    "--no-playground": ("--no-webui",),
    "--allowed-host NAME": ("--allowed-origins",),
    "--target FOLDER, with that revision": ("--revision",),
    "set the variable HF_HOME": ("--download-dir",),
    "set the variable HF_TOKEN": ("--hf-token",),
    "--log-level debug": ("--verbose", "-v", "--log-verbosity", "--uvicorn-log-level"),
    "--metrics-port N": ("--metrics", "--enable-metrics"),
    "--trace-endpoint {}": ("--otlp-traces-endpoint",),
    "--kv-cache-memory {}": ("--kv-cache-memory-bytes",),
    _MEMORY: ("--gpu-memory-utilization", "--mem-fraction-static"),
    _ALL_CHIPS: (
        *("--tensor-parallel-size", "-tp", "--tp", "--tp-size", "--pipeline-parallel-size"),
        *("-pp", "-ngl", "--gpu-layers", "--n-gpu-layers"),
    ),
    _COPIES: ("--data-parallel-size", "-dp", "--dp-size", "--dp"),
    _ALWAYS: (
        *("--enable-prefix-caching", "--enable-chunked-prefill", "--cont-batching", "-cb"),
        *("-fa", "--flash-attn", "--cache-prompt", "--enable-deterministic-inference"),
    ),
    _WIDTH: (
        *("--num-speculative-tokens", "--speculative-num-draft-tokens", "--draft-max", "--draft"),
        *("--draft-min", "--speculative-num-steps", "--speculative-eagle-topk", "--draft-n-max"),
    ),
    _FROM_THE_CHECKPOINT: (
        *("--tokenizer", "--tokenizer-path", "--jinja", "--chat-template", "--rope-scaling"),
        *("--tool-call-parser", "--enable-auto-tool-choice", "--generation-config"),
        *("--reasoning-parser", "--reasoning-format"),
    ),
    _PER_REQUEST: (
        *("--seed", "--temp", "--top-k", "--top-p", "--min-p", "--n-predict", "-n"),
        *("--repeat-penalty", "--override-generation-config"),
    ),
    _THREADS: ("-t", "--threads", "-tb", "--threads-batch"),
    "leave it out: adapters are not served": (
        *("--enable-lora", "--lora-modules", "--lora", "--lora-paths"),
    ),
    "leave it out: there is nothing to choose here": (
        *("--load-format", "--swap-space", "--cpu-offload-gb", "--mlock", "--no-mmap", "--slots"),
        *("--guided-decoding-backend", "--structured-outputs-config", "--grammar-backend"),
        *("--attention-backend", "--disable-log-stats"),
    ),
    "leave it out: no code of a checkpoint is run": ("--trust-remote-code",),
    "leave it out: prompts are never logged": (
        *("--disable-log-requests", "--no-enable-log-requests"),
    ),
    "leave it out: programs are compiled at the start, and kept": (
        *("--enforce-eager", "--disable-cuda-graph", "--no-warmup"),
    ),
}

EQUIVALENTS: Mapping[str, str] = {
    flag: answer for answer, flags in _BY_ANSWER.items() for flag in flags
}
