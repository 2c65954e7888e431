"""transformers as a process that `decoders.py` asks; imports nothing that is not its own.

Arguments: a Hugging Face directory, the element type of the weights, threads.
"""

import json
import os
import sys
import time
from typing import Any, TextIO

import torch
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers import __version__ as transformers_version
from transformers.utils import logging


class TimingStreamer:
    """Notes when `generate` streams: first the prompt, then tokens as they come."""

    def __init__(self) -> None:
        """Start the clock."""
        self.seconds: list[float] = []
        self._start = time.perf_counter()
        self._prompt_came = False

    def put(self, token_ids: Any) -> None:
        """Note when tokens came."""
        if self._prompt_came:
            self.seconds += [time.perf_counter() - self._start] * token_ids.numel()
        self._prompt_came = True

    def end(self) -> None:
        """Do nothing at the end of a completion."""


def complete(
    model: Any,
    *,
    prompt: list[int],
    max_tokens: int,
    stop: list[int],
    prompt_lookup_tokens: int = 0,
) -> dict[str, Any]:
    """Generate greedily; prompt lookup drafts at most `prompt_lookup_tokens`, 0 for none."""
    config = GenerationConfig(
        do_sample=False,
        max_new_tokens=max_tokens,
        # An empty list is no stop token to some versions and an error to others.
        eos_token_id=stop or None,
        pad_token_id=min(stop, default=0),
        prompt_lookup_num_tokens=prompt_lookup_tokens or None,
    )
    streamer = TimingStreamer()
    prompt_ids = torch.tensor([prompt])
    output = model.generate(
        prompt_ids,
        attention_mask=torch.ones_like(prompt_ids),
        generation_config=config,
        streamer=streamer,
    )
    return {"tokens": output[0, len(prompt) :].tolist(), "seconds": streamer.seconds}


def serve(responses: TextIO, directory: str, dtype: str, threads: str) -> None:
    """Load the model and answer requests, up to the end of the input."""
    torch.set_num_threads(int(threads))
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(
        directory, dtype=getattr(torch, dtype), local_files_only=True, use_safetensors=True
    ).eval()
    # The directory may ask for sampling or penalties; here all decode greedily.
    model.generation_config = GenerationConfig()
    print(
        json.dumps({"transformers": transformers_version, "torch": torch.__version__}),
        file=responses,
        flush=True,
    )
    for line in sys.stdin:
        print(json.dumps(complete(model, **json.loads(line))), file=responses, flush=True)


if __name__ == "__main__":
    # Whatever else is printed goes where errors go.
    responses = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(responses, *sys.argv[1:])
