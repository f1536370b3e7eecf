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
# Trained on 12 tokens, extended to 64.
LONG = dict(SMALL, num_hidden_layers=2, max_position_embeddings=64, original_max_position_embeddings=12, rope_parameters=dict(
    rope_type="longrope", rope_theta=50.0, short_factor=[1.0, 1.1, 1.3, 1.6], long_factor=[1.5, 2.5, 4.0, 6.0]))
PROMPTS = [[5], [3, 1, 4, 1, 5, 9, 2], [(at * 37 + 11) % 97 for at in range(150)]]


def written(name, fields, path):
    """A model of random weights, stored in bf16 and read again."""
    torch.manual_seed(1)
    config = AutoConfig.for_model(name, **dict(dict(eos_token_id=None, bos_token_id=None, pad_token_id=None), **fields))
    config.initializer_range = 0.3
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.05)
    os.makedirs(path, exist_ok=True)
    model.to(torch.bfloat16).save_pretrained(path)
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()


def greedy(name, model, prompt, most):
    ids = torch.tensor([prompt])
    with torch.no_grad():
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=most, do_sample=False)
    return {"model": name, "prompt": prompt, "tokens": out[0, len(prompt):].tolist()}


def store(path, cases):
    with open(path, "w") as file:
        file.write("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")


def main(folder):
    cases = []
    for name, fields in FAMILIES.items():
        model = written(name, fields, f"{folder}/{name}")
        cases += [greedy(name, model, prompt, 40) for prompt in PROMPTS]
    store(f"{folder}/expected.json", cases)
    # Texts that stay short, that become long, and that are long from the start.
    model = written("phi3", LONG, f"{folder}/long")
    prompts = [[5], [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8], [(at * 37 + 11) % 97 for at in range(20)]]
    store(f"{folder}/long/expected.json", [greedy("long", model, prompt, 20) for prompt in prompts])


main(sys.argv[1])
