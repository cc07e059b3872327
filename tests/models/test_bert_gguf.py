"""The conversion of sentence encoders: deterministic, complete, and readable by our own header reader."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest

from pandacore.errors import ConfigError
from pandacore.models.bert_gguf import convert
from pandacore.models.gguf import read_metadata

CONFIG = {
    "num_hidden_layers": 1,
    "max_position_embeddings": 16,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_attention_heads": 2,
    "layer_norm_eps": 1e-12,
    "type_vocab_size": 2,
}
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "pan", "##da", "[", "é"]


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(1)
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (len(VOCABULARY), 8),
        "embeddings.position_embeddings.weight": (16, 8),
        "embeddings.token_type_embeddings.weight": (2, 8),
        "embeddings.LayerNorm.weight": (8,),
        "embeddings.LayerNorm.bias": (8,),
        "pooler.dense.weight": (8, 8),
    }
    for part, (rows, columns) in {
        "attention.self.query": (8, 8),
        "attention.self.key": (8, 8),
        "attention.self.value": (8, 8),
        "attention.output.dense": (8, 8),
        "intermediate.dense": (12, 8),
        "output.dense": (8, 12),
    }.items():
        shapes[f"encoder.layer.0.{part}.weight"] = (rows, columns)
        shapes[f"encoder.layer.0.{part}.bias"] = (rows,)
    for part in ("attention.output.LayerNorm", "output.LayerNorm"):
        shapes[f"encoder.layer.0.{part}.weight"] = shapes[f"encoder.layer.0.{part}.bias"] = (8,)
    header, data = {}, b""
    for name, shape in shapes.items():
        tensor = rng.standard_normal(shape).astype("<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(tensor)]}
        data += tensor
    text = json.dumps(header).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    (tmp_path / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def test_same_weights_give_the_same_file(encoder: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        convert(encoder, encoder / name, name="tiny")
    first = (encoder / "a.gguf").read_bytes()
    assert first == (encoder / "b.gguf").read_bytes()
    metadata = read_metadata(encoder / "a.gguf")
    assert metadata["general.architecture"] == "bert"
    assert metadata["bert.context_length"] == 16
    assert metadata["tokenizer.ggml.tokens"] == len(VOCABULARY)
    assert metadata["tokenizer.ggml.cls_token_id"] == 2
    assert "\u2581pan".encode() in first


@pytest.mark.parametrize("damage", ["config.json", "vocab.txt", "model.safetensors"])
def test_incomplete_encoder_is_refused(encoder: Path, damage: str) -> None:
    path = encoder / damage
    path.write_bytes(
        b"{}" if damage == "config.json" else path.read_bytes()[: 30 if damage == "vocab.txt" else 100]
    )
    if damage == "vocab.txt":
        path.write_text("a\nb\n")
    with pytest.raises(ConfigError, match="cannot be converted"):
        convert(encoder, encoder / "x.gguf", name="tiny")
