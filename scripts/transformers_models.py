"""Makes tests/transformers: tiny configurations, their weights, and what the library computes.

    pip install torch transformers safetensors
    python scripts/transformers_models.py tests/transformers
"""

import os
import sys

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import (
    BertConfig, BertForMaskedLM, BertModel, DistilBertConfig, DistilBertForMaskedLM, GPT2Config, GPT2LMHeadModel,
    LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM,
)

folder = sys.argv[1]
os.makedirs(folder, exist_ok=True)
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
