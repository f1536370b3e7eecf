"""Makes tests/generate: small decoders, and what the library's greedy search writes on from prompts.

    pip install torch transformers safetensors
    python scripts/transformers_generate.py tests/generate

Prompts are of one token, of a few, and longer than the block that the prompt's plan takes. Weights are stored in
bf16 and computed with in f32.
"""

import json
import os
import sys

import torch
from transformers import AutoConfig, AutoModelForCausalLM

SMALL = dict(hidden_size=32, intermediate_size=48, num_attention_heads=4, num_hidden_layers=2, num_key_value_heads=2,
             vocab_size=97, max_position_embeddings=256)
FAMILIES = {
    "llama": dict(SMALL, eos_token_id=16),
    "mistral": dict(SMALL, sliding_window=8, head_dim=8),
    "qwen2": dict(SMALL, num_hidden_layers=3),
    "gpt2": dict(n_embd=32, n_layer=2, n_head=4, vocab_size=97, n_positions=256),
}
PROMPTS = [[5], [3, 1, 4, 1, 5, 9, 2], [(at * 37 + 11) % 97 for at in range(150)]]


def main(folder):
    cases = []
    for name, fields in FAMILIES.items():
        torch.manual_seed(1)
        config = AutoConfig.for_model(name, **dict(dict(eos_token_id=None, bos_token_id=None, pad_token_id=None), **fields))
        config.initializer_range = 0.3
        model = AutoModelForCausalLM.from_config(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() == 1:
                    parameter.add_(torch.randn_like(parameter) * 0.05)
        path = f"{folder}/{name}"
        os.makedirs(path, exist_ok=True)
        model.to(torch.bfloat16).save_pretrained(path)
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        for prompt in PROMPTS:
            ids = torch.tensor([prompt])
            with torch.no_grad():
                out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=40, do_sample=False)
            cases.append({"model": name, "prompt": prompt, "tokens": out[0, len(prompt):].tolist()})
    with open(f"{folder}/expected.json", "w") as file:
        file.write("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")


main(sys.argv[1])
