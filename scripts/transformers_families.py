"""Compares families of transformers with the library on random small configurations.

    pip install torch transformers safetensors
    python scripts/transformers_families.py store tests/transformers [FAMILY...]  # the stored checkpoints of FAMILIES
    python scripts/transformers_families.py vary target/debug/partition 200 [SEED] [FAMILY...]
    python scripts/transformers_families.py names tests/transformers    # what the library's models hold: names.txt there

`store` writes one folder for each family: configuration, weights, inputs, the library's outputs. `vary` draws
sizes, heads and settings at random, and runs the program on each against the library.
"""

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile

import numpy as np
import torch
import transformers as hf

# Whole, padded behind, padded before, in between.
MASK = torch.tensor([[1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0, 0], [0, 0, 0, 1, 1, 1, 1], [1, 0, 1, 1, 0, 1, 1]])
# Each row sees some key, itself or the one before.
SEEN = torch.tensor([[1] * 7, [1, 0, 1, 1, 1, 1, 1], [1, 1, 1, 0, 1, 0, 1], [1] * 7])
IDS = torch.arange(28).reshape(4, 7) * 7 % 17 + 2


def llama_like(r, **more):
    heads, shared = r.choice([(2, 1), (2, 2), (6, 3), (4, 2), (3, 1)])
    width = r.choice([4, 6])
    return dict(vocab_size=19, hidden_size=heads * width, num_attention_heads=heads, num_key_value_heads=shared,
                num_hidden_layers=r.choice([1, 2, 3]), intermediate_size=r.choice([5, 8, 11]),
                max_position_embeddings=16, tie_word_embeddings=r.random() < 0.3, **more)


def act(r):
    return r.choice(["gelu", "gelu_new", "silu", "relu", "gelu_pytorch_tanh", "quick_gelu", "relu2"])


def scaling(r, context=16):
    return r.choice([
        {},
        dict(rope_parameters=dict(rope_type="default", rope_theta=r.choice([20.0, 500.0]))),
        dict(rope_parameters=dict(rope_type="linear", factor=r.choice([2.0, 3.5]), rope_theta=20.0)),
        # Of seven tokens, some are beyond what the model was trained with.
        dict(rope_parameters=dict(rope_type="dynamic", factor=r.choice([1.0, 2.0, 3.5]), rope_theta=20.0),
             max_position_embeddings=r.choice([context, 6, 4])),
        dict(rope_parameters=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                  original_max_position_embeddings=8, rope_theta=20.0)),
        dict(rope_parameters=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=8, rope_theta=20.0,
                                  **r.choice([{}, dict(truncate=False), dict(beta_fast=4.0, beta_slow=0.5),
                                              dict(attention_factor=1.25)]))),
    ])


def kinds(r, layers):
    return [r.choice(["full_attention", "sliding_attention"]) for _ in range(layers)]


def llama(r):
    return dict(llama_like(r), **scaling(r), attention_bias=r.random() < 0.5, mlp_bias=r.random() < 0.5,
                hidden_act=act(r), **r.choice([{}, dict(head_dim=6)]))


def mistral(r):
    return dict(llama_like(r), **scaling(r), sliding_window=r.choice([None, 1, 2, 3, 100]), hidden_act=act(r))


def qwen(r, **more):
    own = llama_like(r)
    windows = r.choice([{}, dict(use_sliding_window=True, sliding_window=2, max_window_layers=1),
                        dict(use_sliding_window=True, sliding_window=3,
                             layer_types=kinds(r, own["num_hidden_layers"]))])
    return dict(own, **windows, **scaling(r), **more)


def qwen3(r):
    return qwen(r, head_dim=r.choice([4, 6]), attention_bias=r.random() < 0.5, rms_norm_eps=1e-3)


def qwen2_moe(r):
    own = qwen(r, num_experts=r.choice([3, 4]), num_experts_per_tok=r.choice([1, 2, 3]), moe_intermediate_size=5,
               shared_expert_intermediate_size=r.choice([4, 7]), norm_topk_prob=r.random() < 0.5,
               qkv_bias=r.random() < 0.7)
    return dict(own, **r.choice([{}, dict(mlp_only_layers=[0]), dict(decoder_sparse_step=2)]))


def mixtral(r):
    return dict(llama_like(r), **scaling(r), num_local_experts=r.choice([2, 3, 5]), num_experts_per_tok=r.choice([1, 2]),
                sliding_window=r.choice([None, 2]), hidden_act=act(r))


def gpt_oss(r):
    own = llama_like(r)
    own["head_dim"] = r.choice([4, 6])
    types = r.choice([{}, dict(layer_types=kinds(r, own["num_hidden_layers"]))])
    return dict(own, **types, **scaling(r), num_local_experts=r.choice([2, 4]), num_experts_per_tok=r.choice([1, 2]),
                sliding_window=r.choice([2, 3]), attention_bias=r.random() < 0.5,
                **r.choice([{}, dict(swiglu_alpha=1.1, swiglu_limit=0.5)]))


def gemma(r):
    return dict(llama_like(r), **scaling(r), head_dim=r.choice([4, 6]), attention_bias=r.random() < 0.5,
                hidden_act=r.choice(["gelu", "gelu_pytorch_tanh", "silu"]))


def gemma2(r):
    own = dict(llama_like(r), **scaling(r), head_dim=r.choice([4, 6]), attention_bias=r.random() < 0.5,
               query_pre_attn_scalar=r.choice([4, 9]), sliding_window=r.choice([2, 3]),
               attn_logit_softcapping=r.choice([None, 2.0, 50.0]), final_logit_softcapping=r.choice([None, 1.5, 30.0]),
               hidden_activation=r.choice(["gelu_pytorch_tanh", "silu"]))
    return dict(own, **r.choice([{}, dict(layer_types=kinds(r, own["num_hidden_layers"]))]))


def gemma3(r):
    own = gemma2(r)
    own.pop("rope_parameters", None)
    both = dict(full_attention=r.choice([dict(rope_type="linear", factor=8.0, rope_theta=50.0), dict(rope_type="default")]),
                sliding_attention=dict(rope_type="default", rope_theta=20.0))
    return dict(own, **r.choice([{}, dict(rope_parameters=both), dict(sliding_window_pattern=2)]))


def olmo2(r):
    return dict(llama_like(r), **scaling(r), attention_bias=r.random() < 0.5, hidden_act=act(r))


def olmo3(r):
    own = dict(llama_like(r), attention_bias=r.random() < 0.5, hidden_act=act(r), sliding_window=r.choice([2, 3]))
    both = dict(full_attention=r.choice([dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=8, rope_theta=20.0),
                                         dict(rope_type="default", rope_theta=30.0)]),
                sliding_attention=dict(rope_type="default", rope_theta=20.0))
    return dict(own, **r.choice([{}, dict(layer_types=kinds(r, own["num_hidden_layers"]))]),
                **r.choice([{}, dict(rope_parameters=both)]))


def granite(r):
    return dict(llama_like(r), **scaling(r), attention_bias=r.random() < 0.5, mlp_bias=r.random() < 0.5, hidden_act=act(r),
                **r.choice([{}, dict(embedding_multiplier=3.5, logits_scaling=2.5, residual_multiplier=0.4,
                                     attention_multiplier=0.3)]))


def smollm3(r):
    own = dict(llama_like(r), **scaling(r), attention_bias=r.random() < 0.5, mlp_bias=r.random() < 0.5, hidden_act=act(r))
    layers = own["num_hidden_layers"]
    turned = r.choice([{}, dict(no_rope_layer_interval=2), dict(no_rope_layers=[r.choice([0, 1]) for _ in range(layers)])])
    return dict(own, **turned, **r.choice([{}, dict(use_sliding_window=True, sliding_window=2)]), pad_token_id=None)


def starcoder2(r):
    return dict(llama_like(r), **scaling(r), use_bias=r.random() < 0.6, sliding_window=r.choice([None, 2, 3]),
                hidden_act=act(r), norm_epsilon=r.choice([1e-5, 1e-2]))


def olmo(r):
    return dict(llama_like(r), **scaling(r), attention_bias=r.random() < 0.5, hidden_act=act(r),
                clip_qkv=r.choice([None, 0.3, 2.0]))


def nemotron(r):
    own = llama_like(r)
    own["hidden_size"] = own["num_attention_heads"] * 8
    return dict(own, attention_bias=r.random() < 0.5, mlp_bias=r.random() < 0.5, hidden_act=act(r),
                norm_eps=r.choice([1e-5, 1e-2]), **r.choice([{}, dict(partial_rotary_factor=0.25), dict(head_dim=12)]))


def cohere(r):
    return dict(llama_like(r), **scaling(r), attention_bias=r.random() < 0.5, hidden_act=act(r),
                use_qk_norm=r.random() < 0.5, logit_scale=r.choice([0.0625, 2.0]), layer_norm_eps=r.choice([1e-5, 1e-2]))


def cohere2(r):
    own = dict(llama_like(r), attention_bias=r.random() < 0.5, hidden_act=act(r), logit_scale=r.choice([0.0625, 2.0]),
               sliding_window=r.choice([2, 3, 100]))
    return dict(own, **r.choice([{}, dict(layer_types=kinds(r, own["num_hidden_layers"])), dict(sliding_window_pattern=2)]))


def glm(r):
    own = llama_like(r)
    return dict(own, head_dim=r.choice([8, 12]), attention_bias=r.random() < 0.5, hidden_act=act(r), pad_token_id=None,
                **r.choice([{}, dict(rope_parameters=dict(rope_type="default", rope_theta=20.0, partial_rotary_factor=0.5))]))


def gpt_bigcode(r):
    heads = r.choice([2, 3])
    return dict(vocab_size=19, n_embd=4 * heads, n_head=heads, n_layer=2, n_positions=16, n_inner=r.choice([None, 11]),
                activation_function=act(r), tie_word_embeddings=r.random() < 0.5, multi_query=r.random() < 0.5,
                scale_attn_weights=r.random() < 0.5)


def gpt_neo(r):
    heads, layers = r.choice([2, 3]), r.choice([2, 4])
    types = r.choice([[[["global", "local"], layers // 2]], [[["local"], layers]], [[["global"], 1], [["local"], layers - 1]]])
    return dict(vocab_size=19, hidden_size=4 * heads, num_heads=heads, num_layers=layers, attention_types=types,
                window_size=r.choice([2, 3, 256]), max_position_embeddings=16, intermediate_size=r.choice([None, 11]),
                activation_function=act(r), tie_word_embeddings=r.random() < 0.5)


def qwen3_moe(r):
    own = dict(llama_like(r), **scaling(r), head_dim=r.choice([4, 6]), attention_bias=r.random() < 0.5,
               num_experts=r.choice([3, 4]), num_experts_per_tok=r.choice([1, 2, 3]), moe_intermediate_size=5,
               norm_topk_prob=r.random() < 0.5, **r.choice([{}, dict(use_sliding_window=True, sliding_window=3)]))
    return dict(own, **r.choice([{}, dict(mlp_only_layers=[0]), dict(decoder_sparse_step=2)]))


def stablelm(r):
    own = llama_like(r)
    own["hidden_size"] = own["num_attention_heads"] * 8
    return dict(own, use_qkv_bias=r.random() < 0.5, qk_layernorm=r.random() < 0.5, hidden_act=act(r),
                use_parallel_residual=r.random() < 0.5, **r.choice([{}, dict(partial_rotary_factor=0.5)]))


def phi(r):
    own = llama_like(r)
    own["hidden_size"] = own["num_attention_heads"] * 8
    return dict(own, qk_layernorm=r.random() < 0.5, hidden_act=act(r), partial_rotary_factor=r.choice([0.25, 0.5, 0.75]))


def phi3(r):
    own = llama_like(r)
    own["hidden_size"] = own["num_attention_heads"] * 8
    part = r.choice([0.5, 1.0])
    pairs = int(8 * part) // 2
    rope = r.choice([{}, dict(rope_parameters=dict(
        rope_type="longrope", short_factor=[1.0 + 0.3 * i for i in range(pairs)],
        long_factor=[2.0 + i for i in range(pairs)], rope_theta=20.0))])
    return dict(own, partial_rotary_factor=part, sliding_window=r.choice([None, 2]), hidden_act=act(r),
                original_max_position_embeddings=r.choice([4, 6, 8]), pad_token_id=None, **rope)


def gpt_neox(r):
    heads = r.choice([2, 3])
    return dict(vocab_size=19, hidden_size=8 * heads, num_attention_heads=heads, num_hidden_layers=2,
                intermediate_size=r.choice([5, 12]), max_position_embeddings=16, use_parallel_residual=r.random() < 0.5,
                rotary_pct=r.choice([0.25, 0.5, 1.0]), rotary_emb_base=r.choice([20.0, 10000.0]),
                attention_bias=r.random() < 0.5, hidden_act=act(r), tie_word_embeddings=r.random() < 0.3)


def gptj(r):
    heads = r.choice([2, 3])
    return dict(vocab_size=19, n_embd=8 * heads, n_head=heads, n_layer=2, n_positions=16,
                n_inner=r.choice([None, 11]), rotary_dim=r.choice([2, 4, 8]), activation_function=act(r),
                tie_word_embeddings=r.random() < 0.3)


def gpt2(r):
    heads = r.choice([2, 3])
    return dict(vocab_size=19, n_embd=4 * heads, n_head=heads, n_layer=2, n_positions=16, n_inner=r.choice([None, 11]),
                activation_function=act(r), tie_word_embeddings=r.random() < 0.5,
                scale_attn_by_inverse_layer_idx=r.random() < 0.5, scale_attn_weights=r.random() < 0.5)


def opt(r):
    heads = r.choice([2, 3])
    return dict(vocab_size=19, hidden_size=4 * heads, num_attention_heads=heads, num_hidden_layers=2,
                ffn_dim=r.choice([5, 11]), max_position_embeddings=12, do_layer_norm_before=r.random() < 0.6,
                word_embed_proj_dim=r.choice([None, 4 * heads, 6]), enable_bias=r.random() < 0.6,
                layer_norm_elementwise_affine=r.random() < 0.7, activation_function=r.choice(["relu", "gelu"]),
                tie_word_embeddings=r.random() < 0.7, _remove_final_layer_norm=r.random() < 0.2)


def bloom(r):
    heads = r.choice([2, 3, 5, 6])
    return dict(vocab_size=19, hidden_size=4 * heads, n_head=heads, n_layer=2,
                apply_residual_connection_post_layernorm=r.random() < 0.4, tie_word_embeddings=r.random() < 0.7)


def falcon(r):
    heads, shared = r.choice([(2, 1), (6, 3), (4, 2), (3, 3)])
    kind = r.choice([dict(), dict(multi_query=False), dict(parallel_attn=False), dict(multi_query=False, parallel_attn=False),
                     dict(new_decoder_architecture=True, num_kv_heads=shared),
                     dict(new_decoder_architecture=True, num_kv_heads=shared, num_ln_in_parallel_attn=1),
                     dict(new_decoder_architecture=True, num_kv_heads=shared, num_ln_in_parallel_attn=2)])
    return dict(vocab_size=19, hidden_size=4 * heads, num_attention_heads=heads, num_hidden_layers=2, bias=r.random() < 0.5,
                alibi=r.random() < 0.4, ffn_hidden_size=r.choice([None, 11]), activation=r.choice(["gelu", "relu"]),
                tie_word_embeddings=r.random() < 0.7, **kind)


def bert(r):
    heads = r.choice([2, 3])
    return dict(vocab_size=19, hidden_size=4 * heads, num_attention_heads=heads, num_hidden_layers=2, intermediate_size=11,
                max_position_embeddings=r.choice([12, 17]), type_vocab_size=r.choice([1, 2]), hidden_act=act(r),
                is_decoder=r.random() < 0.2, tie_word_embeddings=r.random() < 0.6)


def roberta(r):
    return dict(bert(r), pad_token_id=r.choice([1, 3]))


def distilbert(r):
    heads = r.choice([2, 3])
    return dict(vocab_size=19, dim=4 * heads, hidden_dim=11, n_heads=heads, n_layers=2, max_position_embeddings=12,
                activation=r.choice(["gelu", "relu"]), tie_word_embeddings=r.random() < 0.6)


def t5(r):
    heads = r.choice([2, 3])
    return dict(vocab_size=19, d_model=8, d_kv=4, num_heads=heads, d_ff=r.choice([5, 11]), num_layers=2,
                num_decoder_layers=r.choice([None, 1]), relative_attention_num_buckets=r.choice([4, 6, 32]),
                relative_attention_max_distance=r.choice([32, 128]), tie_word_embeddings=r.random() < 0.5,
                feed_forward_proj=r.choice(["relu", "gated-gelu", "gated-silu", "gelu"]))


def whisper(r):
    heads = r.choice([2, 3])
    return dict(vocab_size=19, num_mel_bins=5, d_model=8 * heads, encoder_layers=r.choice([1, 2]), encoder_attention_heads=heads,
                decoder_layers=r.choice([1, 2]), decoder_attention_heads=r.choice([heads, 2 * heads]), encoder_ffn_dim=11,
                decoder_ffn_dim=7, max_source_positions=6, max_target_positions=8, activation_function=r.choice(["gelu", "relu"]),
                scale_embedding=r.random() < 0.3, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
                tie_word_embeddings=r.random() < 0.7)


def clip_text(r):
    heads = r.choice([2, 3])
    return dict(vocab_size=19, hidden_size=4 * heads, intermediate_size=11, num_hidden_layers=2, num_attention_heads=heads,
                max_position_embeddings=9, projection_dim=6, eos_token_id=r.choice([2, 5]), pad_token_id=1, bos_token_id=0,
                hidden_act=r.choice(["quick_gelu", "gelu"]))


def images(r):
    heads = r.choice([2, 3])
    return dict(hidden_size=4 * heads, intermediate_size=11, num_hidden_layers=2, num_attention_heads=heads, num_channels=r.choice([1, 3]),
                image_size=8, patch_size=r.choice([2, 4, 3]))


def clip_vision(r):
    return dict(images(r), projection_dim=6, hidden_act=r.choice(["quick_gelu", "gelu"]))


def clip(r):
    return dict(text_config=clip_text(r), vision_config=clip_vision(r), projection_dim=r.choice([6, 10]))


def vit(r):
    return dict(images(r), qkv_bias=r.random() < 0.6, hidden_act=act(r), num_labels=r.choice([2, 4]))


# The classes, how configurations are drawn, and whether only eager attention computes what they say.
FAMILIES = {
    "gpt2": ("GPT2Config", ["GPT2LMHeadModel"], gpt2, False),
    "llama": ("LlamaConfig", ["LlamaForCausalLM"], llama, False),
    "mistral": ("MistralConfig", ["MistralForCausalLM"], mistral, False),
    "qwen2": ("Qwen2Config", ["Qwen2ForCausalLM", "Qwen2ForTokenClassification"], qwen, False),
    "qwen3": ("Qwen3Config", ["Qwen3ForCausalLM", "Qwen3Model", "Qwen3ForQuestionAnswering"], qwen3, False),
    "olmo2": ("Olmo2Config", ["Olmo2ForCausalLM"], olmo2, False),
    "olmo3": ("Olmo3Config", ["Olmo3ForCausalLM", "Olmo3Model"], olmo3, False),
    "granite": ("GraniteConfig", ["GraniteForCausalLM", "GraniteModel"], granite, False),
    "smollm3": ("SmolLM3Config", ["SmolLM3ForCausalLM", "SmolLM3ForTokenClassification"], smollm3, False),
    "starcoder2": ("Starcoder2Config", ["Starcoder2ForCausalLM", "Starcoder2ForTokenClassification"], starcoder2, False),
    "olmo": ("OlmoConfig", ["OlmoForCausalLM", "OlmoModel"], olmo, False),
    "nemotron": ("NemotronConfig", ["NemotronForCausalLM", "NemotronForTokenClassification"], nemotron, False),
    "cohere": ("CohereConfig", ["CohereForCausalLM", "CohereModel"], cohere, False),
    "cohere2": ("Cohere2Config", ["Cohere2ForCausalLM", "Cohere2Model"], cohere2, False),
    "glm": ("GlmConfig", ["GlmForCausalLM", "GlmForTokenClassification"], glm, False),
    "glm4": ("Glm4Config", ["Glm4ForCausalLM", "Glm4ForTokenClassification"], glm, False),
    "gpt_bigcode": ("GPTBigCodeConfig", ["GPTBigCodeForCausalLM", "GPTBigCodeForTokenClassification"], gpt_bigcode, False),
    "gpt_neo": ("GPTNeoConfig", ["GPTNeoForCausalLM", "GPTNeoForTokenClassification", "GPTNeoForQuestionAnswering"],
                gpt_neo, True),
    "qwen3_moe": ("Qwen3MoeConfig", ["Qwen3MoeForCausalLM", "Qwen3MoeForQuestionAnswering"], qwen3_moe, False),
    "stablelm": ("StableLmConfig", ["StableLmForCausalLM", "StableLmForTokenClassification"], stablelm, False),
    "mixtral": ("MixtralConfig", ["MixtralForCausalLM", "MixtralModel"], mixtral, False),
    "qwen2_moe": ("Qwen2MoeConfig", ["Qwen2MoeForCausalLM"], qwen2_moe, False),
    "gpt_oss": ("GptOssConfig", ["GptOssForCausalLM"], gpt_oss, True),
    "gemma": ("GemmaConfig", ["GemmaForCausalLM", "GemmaModel", "GemmaForTokenClassification"], gemma, False),
    "gemma2": ("Gemma2Config", ["Gemma2ForCausalLM"], gemma2, True),
    "gemma3": ("Gemma3TextConfig", ["Gemma3ForCausalLM", "Gemma3TextModel"], gemma3, True),
    "phi": ("PhiConfig", ["PhiForCausalLM", "PhiForTokenClassification"], phi, False),
    "phi3": ("Phi3Config", ["Phi3ForCausalLM"], phi3, False),
    "gpt_neox": ("GPTNeoXConfig", ["GPTNeoXForCausalLM", "GPTNeoXForTokenClassification", "GPTNeoXForQuestionAnswering"],
                 gpt_neox, False),
    "gptj": ("GPTJConfig", ["GPTJForCausalLM", "GPTJForQuestionAnswering"], gptj, False),
    "opt": ("OPTConfig", ["OPTForCausalLM", "OPTModel", "OPTForQuestionAnswering"], opt, False),
    "bloom": ("BloomConfig", ["BloomForCausalLM", "BloomForTokenClassification", "BloomForQuestionAnswering"], bloom, True),
    "falcon": ("FalconConfig", ["FalconForCausalLM", "FalconForTokenClassification", "FalconForQuestionAnswering"], falcon, False),
    "bert": ("BertConfig", ["BertForMaskedLM", "BertForTokenClassification", "BertForSequenceClassification"], bert, False),
    "roberta": ("RobertaConfig", ["RobertaForMaskedLM", "RobertaModel", "RobertaForSequenceClassification",
                                  "RobertaForTokenClassification", "RobertaForQuestionAnswering"], roberta, False),
    "xlm_roberta": ("XLMRobertaConfig", ["XLMRobertaForMaskedLM", "XLMRobertaForSequenceClassification"], roberta, False),
    "camembert": ("CamembertConfig", ["CamembertForMaskedLM", "CamembertForTokenClassification"], roberta, False),
    "distilbert": ("DistilBertConfig", ["DistilBertForMaskedLM"], distilbert, False),
    "t5": ("T5Config", ["T5ForConditionalGeneration", "T5Model", "T5EncoderModel"], t5, False),
    "whisper": ("WhisperConfig", ["WhisperForConditionalGeneration", "WhisperModel"], whisper, False),
    "clip": ("CLIPConfig", ["CLIPModel"], clip, False),
    "clip_text": ("CLIPTextConfig", ["CLIPTextModel", "CLIPTextModelWithProjection"], clip_text, False),
    "clip_vision": ("CLIPVisionConfig", ["CLIPVisionModel", "CLIPVisionModelWithProjection"], clip_vision, False),
    "vit": ("ViTConfig", ["ViTModel", "ViTForImageClassification"], vit, False),
}


OUTPUTS = ["logits", "last_hidden_state", "start_logits", "end_logits", "logits_per_image", "logits_per_text", "text_embeds",
           "image_embeds"]


def filled(model, seed):
    """Every parameter uniform, so that nothing is 0 or 1 by default; tied ones stay tied."""
    torch.manual_seed(seed)
    for parameter in model.parameters():
        torch.nn.init.uniform_(parameter, -0.5, 0.5)
    model.tie_weights()
    return model.eval()


def inputs_of(model, mask):
    """What a class reads: token ids, images, spectra; masks where they are asked for."""
    config, given = model.config, {}
    name = type(model).__name__
    torch.manual_seed(7)
    if name.startswith(("ViT", "CLIPVision")) or name == "CLIPModel":
        own = getattr(config, "vision_config", config)
        given["pixel_values"] = torch.rand(3, own.num_channels, own.image_size, own.image_size) - 0.5
    if name.startswith(("ViT", "CLIPVision")):
        return given
    if name.startswith("Whisper"):
        given["input_features"] = torch.rand(4, config.num_mel_bins, 2 * config.max_source_positions) - 0.5
    else:
        given["input_ids"] = IDS
        if mask is not None:
            given["attention_mask"] = mask
    if name.startswith("Whisper") or name in ("T5Model", "T5ForConditionalGeneration"):
        given["decoder_input_ids"] = IDS.flip(0)[:, :5]
        if mask is not None:
            given["decoder_attention_mask"] = mask[:, :5]
    return given


def written(folder, config, cls, seed, eager, r, masked=True, mask=MASK):
    """Writes a checkpoint with the library's outputs into a folder. Returns the rows to compare."""
    fields = r.fields
    own = getattr(hf, config)(**fields)
    if eager:
        own._attn_implementation = "eager"
    own._experts_implementation = "eager"
    model = filled(getattr(hf, cls)(own), seed)
    model.save_pretrained(folder)
    for extra in ["generation_config.json"]:
        if os.path.exists(f"{folder}/{extra}"):
            os.remove(f"{folder}/{extra}")
    given = inputs_of(model, mask if masked else None)
    with torch.no_grad():
        out = model(**given)
    arrays = {f"in_{key}": value.numpy() for key, value in given.items()}
    for key in OUTPUTS:
        if key in out and not (key == "last_hidden_state" and "logits" in out) and out[key] is not None:
            arrays[f"out_{key}"] = out[key].numpy()
    np.savez_compressed(f"{folder}/io.npz", **arrays)
    return fields


class Draw(random.Random):
    """A source of settings that remembers the fields it gave."""

    fields = None


def averages(name):
    """True where the library gives rows without any key the average of all, and not nothing."""
    return FAMILIES[name][3] or name in ("falcon", "t5")


def rows_that_see(arrays, eager):
    """Positions that may be compared: where no key is seen at all, these classes average over all keys."""
    masks = [key for key in arrays if key.endswith("attention_mask")]
    if not masks or not eager:
        return None
    return arrays[masks[-1]] > 0


def compare(binary, folder, eager):
    arrays = dict(np.load(f"{folder}/io.npz"))
    inputs = {key: value for key, value in arrays.items() if key.startswith("in_")}
    np.savez(f"{folder}/in.npz", **inputs)
    out = f"{folder}/out.npz"
    done = subprocess.run([binary, "run", folder, "--inputs", f"{folder}/in.npz", "--outputs", out, "--quiet"],
                          capture_output=True, text=True)
    if done.returncode != 0:
        return done.stderr.strip().splitlines()[0] if done.stderr.strip() else f"exit {done.returncode}"
    if "array" in done.stderr:
        return done.stderr.strip()
    found = np.load(out)
    seen = rows_that_see(arrays, eager)
    for key in [key for key in arrays if key.startswith("out_")]:
        one, other = arrays[key], found[key.removeprefix("out_")]
        if one.shape != other.shape:
            return f"{key}: {other.shape} in place of {one.shape}"
        if seen is not None:
            one, other = one[seen], other[seen]
        apart = np.abs(one - other)
        if not (apart <= 1e-5 + 1e-5 * np.abs(one)).all():
            return f"{key}: {apart.max():.2e} apart"
    return None


def vary(binary, count, seed, names):
    wrong = 0
    for name in names or FAMILIES:
        config, classes, draw, eager = FAMILIES[name]
        faults, refused = [], []
        for number in range(count):
            r = Draw(f"{seed}.{name}.{number}")
            r.fields = draw(r)
            cls = r.choice(classes)
            folder = tempfile.mkdtemp()
            try:
                written(folder, config, cls, number, eager, r, masked=r.random() < 0.8)
            except (ZeroDivisionError, TypeError, RuntimeError, ValueError) as error:
                refused.append(f"{type(error).__name__} {error}")
                continue
            else:
                fault = compare(binary, folder, averages(name))
            finally:
                shutil.rmtree(folder)
            if fault:
                faults.append((number, cls, fault, r.fields))
        wrong += len(faults)
        drawn = count - len(refused)
        print(f"{name}: {drawn - len(faults)} of {drawn} equal", flush=True)
        for refusal in sorted(set(refused))[:2]:
            print(f"  the library fails: {refusal[:200]}", flush=True)
        for number, cls, fault, fields in faults[:3]:
            print(f"  {number} {cls}: {fault}\n    {fields}", flush=True)
    return wrong


def store(folder, count, names):
    """The first draws of each of the families, as files."""
    for name in names or FAMILIES:
        config, classes, draw, eager = FAMILIES[name]
        for old in range(count):
            shutil.rmtree(f"{folder}/{name}.{old}", ignore_errors=True)
        stored, number = 0, 0
        while stored < count:
            r = Draw(f"stored.{name}.{number}")
            r.fields = draw(r)
            path = f"{folder}/{name}.{stored}"
            number += 1
            try:
                written(path, config, classes[stored % len(classes)], number, eager, r, masked=stored % 3 != 2, mask=SEEN if averages(name) else MASK)
            except (ZeroDivisionError, TypeError, RuntimeError, ValueError):
                continue
            stored += 1


# By family, what its classes end in, as docs/transformers.md lists them.
ENDINGS = {
    "ForCausalLM Model": "granite cohere cohere2",
    "ForCausalLM ForSequenceClassification Model": "olmo2 olmo3 olmo",
    "ForCausalLM ForSequenceClassification ForTokenClassification Model":
        "gemma gemma2 phi phi3 stablelm starcoder2 glm glm4 gpt_bigcode gpt_oss",
    "ForCausalLM ForSequenceClassification ForTokenClassification ForQuestionAnswering Model":
        "llama mistral qwen2 qwen3 mixtral qwen2_moe qwen3_moe smollm3 nemotron gpt_neox gpt_neo falcon bloom",
    "ForCausalLM ForSequenceClassification ForQuestionAnswering Model": "gptj opt",
    "LMHeadModel ForSequenceClassification ForTokenClassification ForQuestionAnswering Model": "gpt2",
    "ForCausalLM TextForSequenceClassification TextModel": "gemma3",
    "ForMaskedLM LMHeadModel ForNextSentencePrediction ForSequenceClassification ForTokenClassification "
    "ForQuestionAnswering Model": "bert",
    "ForMaskedLM ForCausalLM ForSequenceClassification ForTokenClassification ForQuestionAnswering Model": "roberta",
    "ForMaskedLM ForSequenceClassification ForTokenClassification ForQuestionAnswering Model":
        "xlm_roberta camembert distilbert",
    "ForConditionalGeneration EncoderModel Model": "t5",
    "ForConditionalGeneration Model": "whisper",
    "Model": "clip",
    "ModelWithProjection Model": "clip_text clip_vision",
    "ForImageClassification Model": "vit",
}


def braced(tree):
    """Names as `{a.{b,c},d}`."""
    parts = [part if not inner else f"{part}.{inner if inner == '@' else braced(inner)}" for part, inner in sorted(tree.items())]
    return parts[0] if len(parts) == 1 else "{" + ",".join(parts) + "}"


def tree_of(names):
    tree = {}
    for name in names:
        at = tree
        for part in name.split("."):
            at = at.setdefault(part, {})
    return tree


def names(folder):
    """Writes, for each class and the first stored configuration of its family, the names of what a model holds. `@` is
    what the family's class without a head holds."""
    from accelerate import init_empty_weights

    lines = []
    for endings, families in ENDINGS.items():
        for family in families.split():
            path = f"{folder}/families/{family}.0/config.json"
            start = FAMILIES[family][0].removesuffix("Config").removesuffix("Text" if family == "gemma3" else "")
            bare = None
            for ending in reversed(endings.split()):
                cls = getattr(hf, start + ending)
                held = {}
                for tied in (True, False):
                    config = cls.config_class.from_pretrained(path)
                    config.tie_word_embeddings = tied
                    with init_empty_weights():
                        model = cls(config)
                    model.tie_weights()
                    held[tied] = braced({part: "@" if bare and inner == bare else inner
                                         for part, inner in tree_of(model.state_dict()).items()})
                    bare = bare or tree_of(model.state_dict())
                for tied in (True, False)[:1 if held[True] == held[False] else 2]:
                    how = "any" if held[True] == held[False] else ["untied", "tied"][tied]
                    lines.append(f"{family} {start}{ending} {how} {held[tied]}\n")
    with open(f"{folder}/names.txt", "w") as file:
        file.writelines(sorted(lines))


if __name__ == "__main__":
    hf.logging.set_verbosity_error()
    hf.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    if sys.argv[1] == "store":
        store(f"{sys.argv[2]}/families", 2, sys.argv[3:])
    elif sys.argv[1] == "names":
        names(sys.argv[2])
    elif sys.argv[1] == "vary":
        given = sys.argv[4:]
        first = given.pop(0) if given and given[0].isdigit() else "0"
        sys.exit(vary(sys.argv[2], int(sys.argv[3]), first, given) > 0)
