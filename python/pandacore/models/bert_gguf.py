"""A BERT sentence encoder from safetensors to GGUF, so that llama.cpp can run it.

Writes half-precision matrices and single-precision vectors, in a fixed order, with nothing that depends on
the machine or the day: the same weights always give the same file, whose sha256 is pinned.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pandacore.errors import ConfigError

__all__ = ["convert"]

_ALIGN: Final = 32
_U32: Final = 4
_F32: Final = 6
_BOOL: Final = 7
_STRING: Final = 8
_ARRAY: Final = 9
_INT32: Final = 5
_TENSOR_F32: Final = 0
_TENSOR_F16: Final = 1
_MEAN_POOLING: Final = 1
_NORMAL, _CONTROL = 1, 3
_MAX_HEADER: Final = 64 << 20

_LAYER: Final = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}
_TOP: Final = {
    "embeddings.word_embeddings.weight": "token_embd.weight",
    "embeddings.position_embeddings.weight": "position_embd.weight",
    "embeddings.token_type_embeddings.weight": "token_types.weight",
    "embeddings.LayerNorm.weight": "token_embd_norm.weight",
    "embeddings.LayerNorm.bias": "token_embd_norm.bias",
}


def convert(folder: Path, target: Path, *, name: str) -> None:
    """Write ``target`` from ``model.safetensors``, ``vocab.txt`` and ``config.json`` in ``folder``.

    Raises
    ------
    ConfigError
        The files are not those of a BERT encoder.
    """
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        vocabulary = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
        tensors = _safetensors(folder / "model.safetensors")
        _write(target, _metadata(config, vocabulary, name), _renamed(config, tensors))
    except (OSError, ValueError, KeyError, TypeError, struct.error) as error:
        raise ConfigError(
            f"cannot be converted: {type(error).__name__}: {error}", where=str(folder), hint="report this"
        ) from None


def _safetensors(path: Path) -> dict[str, NDArray[np.float32]]:
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        if length > _MAX_HEADER:
            raise ValueError(f"a header of {length} bytes")
        header = json.loads(file.read(length))
    data = np.memmap(path, dtype=np.uint8, mode="r", offset=8 + length)
    found = {}
    for name, entry in header.items():
        if name == "__metadata__" or entry["dtype"] != "F32":
            continue
        begin, end = entry["data_offsets"]
        found[name] = data[begin:end].view("<f4").reshape(entry["shape"])
    return found


def _renamed(config: dict[str, Any], tensors: dict[str, Any]) -> list[tuple[str, NDArray[Any]]]:
    """The tensors that llama.cpp wants, under its names and in its order."""
    found = [(new, tensors[old]) for old, new in _TOP.items()]
    for layer in range(config["num_hidden_layers"]):
        for old, new in _LAYER.items():
            for part in ("weight", "bias"):
                tensor = tensors[f"encoder.layer.{layer}.{old}.{part}"]
                found.append((f"blk.{layer}.{new}.{part}", tensor))
    # What llama.cpp adds or multiplies element by element must stay in single precision.
    wide = ("position_embd.weight", "token_types.weight")
    return [
        (name, tensor.astype("<f2") if tensor.ndim == 2 and name not in wide else tensor.astype("<f4"))
        for name, tensor in found
    ]


def _metadata(config: dict[str, Any], vocabulary: list[str], name: str) -> list[tuple[str, int, bytes]]:
    def u32(value: int) -> tuple[int, bytes]:
        return _U32, struct.pack("<I", value)

    def text(value: str) -> tuple[int, bytes]:
        return _STRING, _string(value)

    ids = {token: index for index, token in enumerate(vocabulary)}
    # llama.cpp writes a word's beginning as U+2581 and its continuation without the "##" of the vocabulary.
    special = {
        token for token in vocabulary if token.startswith("[") and token.endswith("]") and len(token) > 2
    }
    tokens = [
        token if token in special else token[2:] if token.startswith("##") else f"\u2581{token}"
        for token in vocabulary
    ]
    kinds = [_CONTROL if token in special else _NORMAL for token in vocabulary]
    heads = config["num_attention_heads"]
    pairs: dict[str, tuple[int, bytes]] = {
        "general.architecture": text("bert"),
        "general.name": text(name),
        "general.file_type": u32(1),
        "bert.block_count": u32(config["num_hidden_layers"]),
        "bert.context_length": u32(config["max_position_embeddings"]),
        "bert.embedding_length": u32(config["hidden_size"]),
        "bert.feed_forward_length": u32(config["intermediate_size"]),
        "bert.attention.head_count": u32(heads),
        "bert.attention.layer_norm_epsilon": (_F32, struct.pack("<f", config["layer_norm_eps"])),
        "bert.attention.causal": (_BOOL, b"\x00"),
        "bert.pooling_type": u32(_MEAN_POOLING),
        "tokenizer.ggml.model": text("bert"),
        "tokenizer.ggml.pre": text("default"),
        "tokenizer.ggml.token_type_count": u32(config["type_vocab_size"]),
        "tokenizer.ggml.tokens": (_ARRAY, _array(_STRING, [_string(token) for token in tokens])),
        "tokenizer.ggml.token_type": (_ARRAY, _array(_INT32, [struct.pack("<i", kind) for kind in kinds])),
        "tokenizer.ggml.unknown_token_id": u32(ids["[UNK]"]),
        "tokenizer.ggml.seperator_token_id": u32(ids["[SEP]"]),  # spelt so by the format
        "tokenizer.ggml.padding_token_id": u32(ids["[PAD]"]),
        "tokenizer.ggml.cls_token_id": u32(ids["[CLS]"]),
        "tokenizer.ggml.mask_token_id": u32(ids["[MASK]"]),
        "tokenizer.ggml.bos_token_id": u32(ids["[CLS]"]),
        "tokenizer.ggml.eos_token_id": u32(ids["[SEP]"]),
    }
    return [(key, kind, value) for key, (kind, value) in pairs.items()]


def _string(text: str) -> bytes:
    data = text.encode("utf-8")
    return struct.pack("<Q", len(data)) + data


def _array(kind: int, items: list[bytes]) -> bytes:
    return struct.pack("<IQ", kind, len(items)) + b"".join(items)


def _write(
    target: Path, metadata: list[tuple[str, int, bytes]], tensors: list[tuple[str, NDArray[Any]]]
) -> None:
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    for key, kind, value in metadata:
        head += _string(key) + struct.pack("<I", kind) + value
    offset = 0
    for name, tensor in tensors:
        shape = tensor.shape[::-1]  # the format counts dimensions from the innermost
        head += _string(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape)
        head += struct.pack("<IQ", _TENSOR_F16 if tensor.dtype == np.dtype("<f2") else _TENSOR_F32, offset)
        offset += tensor.nbytes + -tensor.nbytes % _ALIGN
    with target.open("wb") as file:
        file.write(head + b"\0" * (-len(head) % _ALIGN))
        for _, tensor in tensors:
            file.write(np.ascontiguousarray(tensor).tobytes())
            file.write(b"\0" * (-tensor.nbytes % _ALIGN))
