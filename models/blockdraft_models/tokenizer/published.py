"""A tokenizer's files as Hugging Face publishes them, also made from those of GGUF."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import processors

from blockdraft_models.tokenizer.files import TokenizerFiles, read_gguf
from blockdraft_models.weights.gguf_header import read_header

_NAMES = (
    *("tokenizer.json", "tokenizer_config.json", "config.json", "generation_config.json"),
    *("special_tokens_map.json", "chat_template.jinja"),
)
_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}


def published_files(path: Path) -> dict[str, bytes]:
    """Return the contents of the files by name, for a directory or a `.gguf` file."""
    if path.is_dir():
        paths = (path / name for name in _NAMES)
        return {file.name: file.read_bytes() for file in paths if file.is_file()}
    files, metadata = read_gguf(path), read_header(path).metadata
    texts = {
        "tokenizer.json": _with_bos(files).to_str(),
        "tokenizer_config.json": json.dumps(_tokenizer_config(files)),
        "config.json": json.dumps(_config(files, metadata)),
    }
    return {name: text.encode() for name, text in texts.items()}


def _with_bos(files: TokenizerFiles) -> Any:
    """Return the backend, which itself adds BOS where encoding begins with it."""
    bos = files.special_tokens.get("bos_token")
    if files.adds_bos and bos is not None:
        files.backend.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A $B", special_tokens=[(bos, files.bos_token_id)]
        )
    return files.backend


def _tokenizer_config(files: TokenizerFiles) -> dict[str, Any]:
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": bool(files.adds_bos),
        "clean_up_tokenization_spaces": False,
        **files.special_tokens,
    }
    return config if files.template is None else {**config, "chat_template": files.template}


def _config(files: TokenizerFiles, metadata: Mapping[str, Any]) -> dict[str, Any]:
    architecture = str(metadata.get("general.architecture"))
    return {
        "model_type": architecture,
        "architectures": [_ARCHITECTURES.get(architecture, architecture)],
        "vocab_size": files.backend.get_vocab_size(),
        "max_position_embeddings": metadata.get(f"{architecture}.context_length"),
        "bos_token_id": files.bos_token_id,
        "eos_token_id": list(files.eos_token_ids),
    }
