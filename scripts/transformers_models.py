"""Makes tests/transformers: tiny configurations, their weights, and what the library computes.

    pip install torch transformers safetensors
    python scripts/transformers_models.py tests/transformers

Files NAME.config.json, NAME.safetensors and NAME.io.npz are bare networks on plain sequences; folders
are checkpoints as they are published, with padding, token types and settings that differ from the defaults.
"""

import json
import os
import sys

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    BertConfig, BertForMaskedLM, BertForSequenceClassification, BertModel, DistilBertConfig, DistilBertForMaskedLM,
    GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification, MistralConfig,
    MistralForCausalLM, Qwen2Config, Qwen2ForCausalLM,
)


def filled(model, seed):
    """Every parameter uniform, so that nothing is 0 or 1 by default; tied ones stay tied."""
    torch.manual_seed(seed)
    for parameter in model.parameters():
        torch.nn.init.uniform_(parameter, -0.5, 0.5)
    model.tie_weights()
    return model.eval()


def plain(folder):
    small = dict(vocab_size=23, hidden_size=16, num_attention_heads=4, num_hidden_layers=2, intermediate_size=24,
                 max_position_embeddings=12)
    models = {
        "gpt2": GPT2LMHeadModel(GPT2Config(vocab_size=23, n_embd=16, n_head=4, n_layer=2, n_positions=12)),
        "llama": LlamaForCausalLM(LlamaConfig(**small, num_key_value_heads=2)),
        "qwen2": Qwen2ForCausalLM(Qwen2Config(**small, num_key_value_heads=4, tie_word_embeddings=True)),
        "bert": BertForMaskedLM(BertConfig(**small)),
        "bert_bare": BertModel(BertConfig(**small), add_pooling_layer=False),
        "distilbert": DistilBertForMaskedLM(
            DistilBertConfig(vocab_size=23, dim=16, hidden_dim=24, n_heads=4, n_layers=2, max_position_embeddings=12)
        ),
    }
    torch.manual_seed(1)
    for name, model in models.items():
        model.eval()
        for parameter in model.parameters():
            torch.nn.init.uniform_(parameter, -0.5, 0.5)
        model.config.architectures = [type(model).__name__]
        with open(f"{folder}/{name}.config.json", "w") as file:
            file.write(model.config.to_json_string(use_diff=False))
        seen = {}
        for key, tensor in model.named_parameters():
            seen[key] = tensor.detach().contiguous()
        save_file(seen, f"{folder}/{name}.safetensors")
        ids = torch.arange(14).reshape(2, 7) * 5 % 23
        with torch.no_grad():
            out = model(ids)[0]
        np.savez(f"{folder}/{name}.io.npz", in_0=ids.numpy(), out_0=out.numpy())


# Whole, padded behind, padded before, in between, and nothing at all.
MASK = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0], [0, 0, 0, 1, 1, 1], [1, 0, 1, 1, 0, 1], [0] * 6])
TYPES = torch.tensor([[0, 0, 0, 1, 1, 1]] * 5)
PLACES = torch.tensor([[0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 1, 1], [1, 1, 1, 0, 1, 2], [0, 0, 1, 2, 2, 3], [1] * 6])
IDS = torch.arange(30).reshape(5, 6) * 7 % 19


def checkpoints(folder):
    gpt2 = dict(vocab_size=19, n_embd=8, n_head=2, n_layer=2, n_inner=12, n_positions=8)
    llama = dict(vocab_size=19, hidden_size=8, num_attention_heads=2, num_hidden_layers=2, intermediate_size=12,
                 max_position_embeddings=8)
    bert = dict(llama, type_vocab_size=3)
    distilbert = dict(vocab_size=19, dim=8, hidden_dim=12, n_heads=2, n_layers=2, max_position_embeddings=8)
    rope = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                original_max_position_embeddings=8, rope_theta=20.0)
    yarn = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16, rope_theta=20.0)
    masked, typed = dict(attention_mask=MASK), dict(token_type_ids=TYPES)
    models = {
        "gpt2_settings": (
            GPT2LMHeadModel(GPT2Config(**gpt2, scale_attn_weights=False, scale_attn_by_inverse_layer_idx=True,
                                       tie_word_embeddings=False, activation_function="quick_gelu")),
            dict(masked, **typed),
        ),
        "gpt2_hub": (GPT2LMHeadModel(GPT2Config(**gpt2)), dict(masked, position_ids=PLACES)),
        "llama_scaled": (
            LlamaForCausalLM(LlamaConfig(**llama, num_key_value_heads=1, attention_bias=True, mlp_bias=True,
                                         rope_parameters=rope)),
            dict(masked, position_ids=PLACES),
        ),
        "llama_yarn": (
            LlamaForCausalLM(LlamaConfig(**llama, head_dim=6, tie_word_embeddings=True, rope_parameters=yarn)),
            dict(masked),
        ),
        "llama_classes": (
            LlamaForSequenceClassification(LlamaConfig(**llama, num_labels=3, pad_token_id=2)), dict(masked),
        ),
        "mistral_window": (
            MistralForCausalLM(MistralConfig(**llama, num_key_value_heads=1, sliding_window=3)), dict(masked),
        ),
        "qwen2_window": (
            Qwen2ForCausalLM(Qwen2Config(**llama, num_key_value_heads=2, use_sliding_window=True, sliding_window=2,
                                         layer_types=["sliding_attention", "full_attention"])),
            dict(masked),
        ),
        "bert_untied": (BertForMaskedLM(BertConfig(**bert, tie_word_embeddings=False)), dict(masked, **typed)),
        "bert_classes": (BertForSequenceClassification(BertConfig(**bert, num_labels=3)), dict(masked, **typed)),
        "distilbert_untied": (
            DistilBertForMaskedLM(DistilBertConfig(**distilbert, tie_word_embeddings=False)), dict(masked),
        ),
    }
    for seed, (name, (model, given)) in enumerate(models.items()):
        if name == "gpt2_hub":
            model = model.to(torch.bfloat16)
        filled(model, seed)
        path = f"{folder}/{name}"
        model.save_pretrained(path, max_shard_size="2kB" if name == "gpt2_hub" else "1GB")
        for extra in ["generation_config.json"]:
            if os.path.exists(f"{path}/{extra}"):
                os.remove(f"{path}/{extra}")
        if name == "gpt2_hub":
            older(path)
        if name == "bert_classes":
            renamed(f"{path}/model.safetensors")
        given = dict(input_ids=IDS, **given)
        with torch.no_grad():
            out = model.float()(**given)
        np.savez(f"{path}/io.npz", **{f"in_{key}": value.numpy() for key, value in given.items()},
                 out_logits=out.logits.numpy())


def older(path):
    """Names without the head's prefix, and the masks that were once saved as buffers."""
    index_path = f"{path}/model.safetensors.index.json"
    with open(index_path) as file:
        index = json.load(file)
    places = {}
    for shard in sorted(set(index["weight_map"].values())):
        arrays = {key.removeprefix("transformer."): value for key, value in load_file(f"{path}/{shard}").items()}
        if not places:
            arrays["h.0.attn.bias"] = torch.tril(torch.ones(8, 8, dtype=torch.uint8)).reshape(1, 1, 8, 8)
            arrays["h.0.attn.masked_bias"] = torch.tensor(-1e4)
        save_file(arrays, f"{path}/{shard}", metadata={"format": "pt"})
        places |= {key: shard for key in arrays}
    index["weight_map"] = places
    with open(index_path, "w") as file:
        json.dump(index, file, indent=1, sort_keys=True)


def renamed(path):
    """Norms as TensorFlow calls their factors and summands, and a head that was left over."""
    ends = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    arrays = {}
    for key, value in load_file(path).items():
        for end, other in ends.items():
            if key.endswith(end):
                key = key.removesuffix(end) + other
        arrays[key] = value
    arrays["cls.seq_relationship.bias"] = torch.zeros(2)
    arrays["bert.embeddings.position_ids"] = torch.arange(8).reshape(1, 8)
    save_file(arrays, path, metadata={"format": "pt"})


if __name__ == "__main__":
    os.makedirs(sys.argv[1], exist_ok=True)
    plain(sys.argv[1])
    checkpoints(sys.argv[1])
