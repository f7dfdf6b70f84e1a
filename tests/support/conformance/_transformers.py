"""Models of transformers, of one or two narrow layers; most compute their loss."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import transformers

from conformance._case import Case

__all__ = ["TRANSFORMERS"]

_WORDS = 128
_SMALL = {
    "vocab_size": _WORDS,
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_GROUPED = _SMALL | {"num_key_value_heads": 2}
_GPT = {
    "vocab_size": _WORDS,
    "n_embd": 64,
    "n_layer": 1,
    "n_head": 4,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_PAIR = {
    "vocab_size": _WORDS,
    "d_model": 64,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
    "forced_eos_token_id": 2,
}
_LAYERS = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
_IMAGE = {"intermediate_size": 128, "image_size": 32, "patch_size": 8}
_STAGES = {"depths": [1, 1], "hidden_sizes": [16, 32]}


def _made(name: str, config: str, options: dict[str, Any]) -> torch.nn.Module:
    settings = getattr(transformers, f"{config}Config")(**options)
    return getattr(transformers, name)(settings)


def _words(batch=4, length=24, *, labels: str | None = "words", mask=False):
    made = {"input_ids": torch.randint(3, _WORDS, (batch, length))}
    if mask:
        made["attention_mask"] = torch.ones(batch, length, dtype=torch.long)
    if labels == "words":
        made["labels"] = made["input_ids"].clone()
    elif labels == "classes":
        made["labels"] = torch.randint(2, (batch,))
    return (), made


def _pairs():
    made = _words()[1]
    return (), {**made, "labels": torch.randint(3, _WORDS, (4, 12))}


def _pixels(side=32, *, classes: int | None = 2):
    made = {"pixel_values": torch.randn(4, 3, side, side)}
    if classes:
        made["labels"] = torch.randint(classes, (4,))
    return (), made


def _sound(length=2000):
    return (), {"input_values": torch.randn(2, length)}


def _both():
    words = torch.randint(3, _WORDS, (4, 8))
    pixels = torch.randn(4, 3, 32, 32)
    return (), {"input_ids": words, "pixel_values": pixels, "return_loss": True}


def _spectrum():
    return (), {
        "input_features": torch.randn(2, 16, 64),
        "labels": torch.randint(3, _WORDS, (2, 8)),
    }


def _masked_pixels():
    return (), {
        "pixel_values": torch.randn(2, 3, 64, 64),
        "labels": torch.randint(4, (2, 64, 64)),
    }


_classes = partial(_words, labels="classes")
_hidden = partial(_words, labels=None)
_features = partial(_pixels, classes=None)
_TOWER = {
    "text_config": _SMALL | {"max_position_embeddings": 16},
    "vision_config": _LAYERS | _IMAGE,
}

# By name: the model, its configuration, what that changes, and the inputs.
_MODELS: dict[str, tuple[str, str, dict[str, Any], Any]] = {
    "bert": ("BertForMaskedLM", "Bert", _SMALL, partial(_words, mask=True)),
    "bert_classes": ("BertForSequenceClassification", "Bert", _SMALL, _classes),
    "roberta": ("RobertaForSequenceClassification", "Roberta", _SMALL, _classes),
    "distilbert": (
        "DistilBertForMaskedLM",
        "DistilBert",
        {
            "vocab_size": _WORDS,
            "dim": 64,
            "n_layers": 1,
            "n_heads": 4,
            "hidden_dim": 128,
        },
        _words,
    ),
    "albert": (
        "AlbertForMaskedLM",
        "Albert",
        _SMALL | {"embedding_size": 32},
        _words,
    ),
    "electra": (
        "ElectraForSequenceClassification",
        "Electra",
        _SMALL | {"embedding_size": 32},
        _classes,
    ),
    "deberta": ("DebertaForMaskedLM", "Deberta", _SMALL, _words),
    "deberta_v2": (
        "DebertaV2ForSequenceClassification",
        "DebertaV2",
        _SMALL
        | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}
        | {"position_buckets": 16},
        _classes,
    ),
    "mpnet": ("MPNetForMaskedLM", "MPNet", _SMALL, _words),
    "convbert": ("ConvBertForMaskedLM", "ConvBert", _SMALL, _words),
    "fnet": ("FNetForMaskedLM", "FNet", _SMALL, _words),
    "funnel": (
        "FunnelForMaskedLM",
        "Funnel",
        {
            "vocab_size": _WORDS,
            "block_sizes": [1, 1],
            "d_model": 64,
            "n_head": 4,
            "d_head": 16,
            "d_inner": 128,
            "num_decoder_layers": 1,
        },
        _words,
    ),
    "longformer": (
        "LongformerForMaskedLM",
        "Longformer",
        _SMALL | {"attention_window": 8},
        _words,
    ),
    "nystromformer": (
        "NystromformerForMaskedLM",
        "Nystromformer",
        _SMALL | {"num_landmarks": 8, "segment_means_seq_len": 24},
        _words,
    ),
    "xlnet": (
        "XLNetLMHeadModel",
        "XLNet",
        {
            "vocab_size": _WORDS,
            "d_model": 64,
            "n_layer": 1,
            "n_head": 4,
            "d_inner": 128,
        },
        _words,
    ),
    "gpt2": ("GPT2LMHeadModel", "GPT2", _GPT, _words),
    "gpt2_classes": (
        "GPT2ForSequenceClassification",
        "GPT2",
        _GPT | {"pad_token_id": 0},
        _classes,
    ),
    "gpt_neo": (
        "GPTNeoForCausalLM",
        "GPTNeo",
        {
            "vocab_size": _WORDS,
            "hidden_size": 64,
            "num_layers": 2,
            "attention_types": [[["global", "local"], 1]],
            "num_heads": 4,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        _words,
    ),
    "gpt_neox": ("GPTNeoXForCausalLM", "GPTNeoX", _SMALL, _words),
    "gptj": ("GPTJForCausalLM", "GPTJ", _GPT | {"rotary_dim": 8}, _words),
    "codegen": ("CodeGenForCausalLM", "CodeGen", _GPT | {"rotary_dim": 8}, _words),
    "opt": (
        "OPTForCausalLM",
        "OPT",
        {
            "vocab_size": _WORDS,
            "hidden_size": 64,
            "num_hidden_layers": 1,
            "ffn_dim": 128,
            "num_attention_heads": 4,
            "word_embed_proj_dim": 64,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        _words,
    ),
    "bloom": (
        "BloomForCausalLM",
        "Bloom",
        {"vocab_size": _WORDS, "hidden_size": 64, "n_layer": 1, "n_head": 4},
        _words,
    ),
    "falcon": ("FalconForCausalLM", "Falcon", _SMALL, _words),
    "llama": ("LlamaForCausalLM", "Llama", _GROUPED, _words),
    "mistral": ("MistralForCausalLM", "Mistral", _GROUPED, _words),
    "mixtral": (
        "MixtralForCausalLM",
        "Mixtral",
        _GROUPED | {"num_local_experts": 4},
        _words,
    ),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2", _GROUPED, _words),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3", _GROUPED | {"head_dim": 16}, _words),
    "gemma": ("GemmaForCausalLM", "Gemma", _GROUPED | {"head_dim": 16}, _words),
    "gemma2": ("Gemma2ForCausalLM", "Gemma2", _GROUPED | {"head_dim": 16}, _words),
    "phi": ("PhiForCausalLM", "Phi", _SMALL, _words),
    "phi3": ("Phi3ForCausalLM", "Phi3", _GROUPED, _words),
    "stablelm": ("StableLmForCausalLM", "StableLm", _GROUPED, _words),
    "starcoder2": ("Starcoder2ForCausalLM", "Starcoder2", _GROUPED, _words),
    "olmo2": ("Olmo2ForCausalLM", "Olmo2", _GROUPED, _words),
    "cohere": ("CohereForCausalLM", "Cohere", _GROUPED, _words),
    "granite": ("GraniteForCausalLM", "Granite", _GROUPED, _words),
    "mamba": (
        "MambaForCausalLM",
        "Mamba",
        {"vocab_size": _WORDS, "hidden_size": 32, "num_hidden_layers": 1},
        partial(_words, 2, 8),
    ),
    "t5": (
        "T5ForConditionalGeneration",
        "T5",
        {
            "vocab_size": _WORDS,
            "d_model": 64,
            "d_kv": 16,
            "d_ff": 128,
            "num_layers": 1,
            "num_heads": 4,
            "pad_token_id": 0,
            "decoder_start_token_id": 0,
            "eos_token_id": 1,
        },
        _pairs,
    ),
    "bart": ("BartForConditionalGeneration", "Bart", _PAIR, _pairs),
    "pegasus": ("PegasusForConditionalGeneration", "Pegasus", _PAIR, _pairs),
    "marian": ("MarianMTModel", "Marian", _PAIR, _pairs),
    "whisper": (
        "WhisperForConditionalGeneration",
        "Whisper",
        _PAIR | {"num_mel_bins": 16, "max_source_positions": 32},
        _spectrum,
    ),
    "wav2vec2": (
        "Wav2Vec2Model",
        "Wav2Vec2",
        _SMALL
        | {"conv_dim": [16, 16], "conv_stride": [5, 4], "conv_kernel": [10, 4]}
        | {"num_feat_extract_layers": 2, "num_conv_pos_embeddings": 16}
        | {"num_conv_pos_embedding_groups": 4, "apply_spec_augment": False},
        _sound,
    ),
    "vit": ("ViTForImageClassification", "ViT", _LAYERS | _IMAGE, _pixels),
    "deit": ("DeiTForImageClassification", "DeiT", _LAYERS | _IMAGE, _pixels),
    "dinov2": (
        "Dinov2Model",
        "Dinov2",
        _LAYERS | {"image_size": 32, "patch_size": 8},
        _features,
    ),
    "swin": (
        "SwinForImageClassification",
        "Swin",
        {
            "image_size": 32,
            "patch_size": 4,
            "embed_dim": 32,
            "depths": [1, 1],
            "num_heads": [2, 4],
            "window_size": 4,
        },
        _pixels,
    ),
    "convnext": (
        "ConvNextForImageClassification",
        "ConvNext",
        _STAGES | {"num_stages": 2},
        _pixels,
    ),
    "resnet": (
        "ResNetForImageClassification",
        "ResNet",
        _STAGES | {"embedding_size": 16},
        _pixels,
    ),
    "segformer": (
        "SegformerForSemanticSegmentation",
        "Segformer",
        {
            "num_encoder_blocks": 2,
            "depths": [1, 1],
            "sr_ratios": [4, 2],
            "hidden_sizes": [16, 32],
            "patch_sizes": [7, 3],
            "strides": [4, 2],
            "num_attention_heads": [1, 2],
            "mlp_ratios": [2, 2],
            "decoder_hidden_size": 32,
            "num_labels": 4,
        },
        _masked_pixels,
    ),
    "clip": ("CLIPModel", "CLIP", _TOWER, _both),
    "siglip": ("SiglipModel", "Siglip", _TOWER, _both),
}
TRANSFORMERS = {
    f"transformers/{name}": Case(
        "transformers", partial(_made, kind, config, options), inputs
    )
    for name, (kind, config, options, inputs) in _MODELS.items()
}
