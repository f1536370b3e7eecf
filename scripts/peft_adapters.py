#!/usr/bin/env python3
"""peft_adapters.py FOLDER: small checkpoints with LoRA adapters, and what peft makes of both.

Writes NAME/config.json and model.safetensors, NAME/adapter, and NAME/io.npz: tokens, and what the model gives once peft has
merged the adapter into it (merge_and_unload), in f32. The adapters differ in what peft knows: ranks and factors of some layers
alone, factors by the root of the rank, matrices whose rows are inputs (GPT-2), a table, a head that is trained as a whole, a
base in bf16 with an adapter in f16. tests/suite/adapters.rs compares.
"""
import os
import sys

import numpy
import peft
import torch
import transformers
from safetensors.torch import load_file, save_file

SMALL = dict(vocab_size=23, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             intermediate_size=24, max_position_embeddings=12)
BERT = {key: value for key, value in SMALL.items() if key != "num_key_value_heads"}


def cases():
    attention = ["q_proj", "k_proj", "v_proj", "o_proj"]
    yield "llama", transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL)), peft.LoraConfig(
        r=4, lora_alpha=6, use_rslora=True, target_modules=[*attention, "gate_proj", "up_proj", "down_proj", "lm_head"],
        rank_pattern={"q_proj": 2, "1.mlp.up_proj": 3}, alpha_pattern={"self_attn.k_proj": 1.5, "0.mlp.down_proj": 9},
    )
    gpt2 = transformers.GPT2Config(vocab_size=23, n_embd=16, n_head=4, n_layer=2, n_positions=12, num_labels=3, pad_token_id=0)
    yield "gpt2", transformers.GPT2ForSequenceClassification(gpt2), peft.LoraConfig(
        r=3, target_modules=["c_attn", "c_proj", "c_fc", "wte"], task_type="SEQ_CLS",
    )
    yield "bert", transformers.BertForSequenceClassification(transformers.BertConfig(**BERT, num_labels=3)), peft.LoraConfig(
        r=2, lora_alpha=5, target_modules=["query", "value", "dense"], task_type="SEQ_CLS",
    )
    mixtral = transformers.MixtralConfig(**SMALL, num_local_experts=3, num_experts_per_tok=2)
    yield "mixtral", transformers.MixtralForCausalLM(mixtral).bfloat16(), peft.LoraConfig(
        r=2, target_modules=[*attention, "gate"],
    )


def filled(model):
    for parameter in model.parameters():
        torch.nn.init.uniform_(parameter, -0.5, 0.5)


def main(folder):
    for name, model, config in cases():
        torch.manual_seed(7)
        path = f"{folder}/{name}"
        filled(model)
        model.save_pretrained(path)
        halves = model.dtype == torch.bfloat16
        model = type(model).from_pretrained(path, dtype=torch.float32)
        adapted = peft.get_peft_model(model, config)
        for key, parameter in adapted.named_parameters():
            if "lora_" in key or "modules_to_save" in key:
                torch.nn.init.uniform_(parameter, -0.5, 0.5)
                if halves:
                    parameter.data = parameter.data.half().float()
        adapted.save_pretrained(f"{path}/adapter")
        os.remove(f"{path}/adapter/README.md")
        if halves:
            arrays = f"{path}/adapter/adapter_model.safetensors"
            save_file({key: value.half() for key, value in load_file(arrays).items()}, arrays)
        for extra in ("generation_config.json",):
            if os.path.exists(f"{path}/{extra}"):
                os.remove(f"{path}/{extra}")
        ids = torch.arange(14).reshape(2, 7) * 5 % 22 + 1
        plain = type(model).from_pretrained(path, dtype=torch.float32)
        merged = peft.PeftModel.from_pretrained(plain, f"{path}/adapter").merge_and_unload().eval()
        with torch.no_grad():
            found = merged(ids)[0]
        numpy.savez(f"{path}/io.npz", in_0=ids.numpy(), out_0=found.numpy())


main(sys.argv[1])
