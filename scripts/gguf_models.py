"""Makes tests/gguf: small models of each architecture as llama.cpp's converter writes them, with what the library
computes of the same weights, and blocks of every type with what `gguf` unpacks them to.

    pip install torch transformers gguf
    python scripts/gguf_models.py tests/gguf

Weights of few bits are unpacked by `gguf` and given to the library, so that both compute with the same numbers.
"""

import json
import os
import sys

import gguf
import numpy as np
import torch
import transformers as hf
from gguf import GGMLQuantizationType as Kind

IDS = torch.arange(14).reshape(2, 7) * 5 % 17 + 2
SMALL = dict(vocab_size=19, hidden_size=32, num_attention_heads=4, num_hidden_layers=2, intermediate_size=64,
             max_position_embeddings=16)
LLAMA = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up",
}
GEMMA = dict(LLAMA, post_attention_layernorm="post_attention_norm", pre_feedforward_layernorm="ffn_norm",
             post_feedforward_layernorm="post_ffw_norm")
GPT2 = {
    "transformer.wte": "token_embd", "transformer.wpe": "position_embd", "transformer.ln_f": "output_norm",
    "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "ln_1": "attn_norm", "ln_2": "ffn_norm",
    "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down",
}


OLMO = dict(LLAMA, post_attention_layernorm="post_attention_norm", post_feedforward_layernorm="post_ffw_norm")
PLAIN = dict(LLAMA, **{"mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"})
# Where the converter lets rotations turn neighbours.
LIKE_LLAMA = ("llama", "granite", "smollm3")


def named(key, names):
    layer, end = key.rsplit(".", 1)
    if layer in names:
        return f"{names[layer]}.{end}"
    _, _, number, inside = layer.split(".", 3)
    return f"blk.{number}.{names[inside]}.{end}"


def neighbours(weight, heads):
    """Rows of queries or keys of a llama, so that the pairs of a rotation are neighbours."""
    return weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def stored(architecture, key, value, config):
    """A weight as the converter writes it, and back: the same function twice, or its inverse."""
    if architecture in LIKE_LLAMA and ("q_proj.weight" in key or "k_proj.weight" in key):
        return neighbours(value, config.num_attention_heads if "q_proj" in key else config.num_key_value_heads)
    if architecture.startswith("gemma") and key.endswith("norm.weight"):
        return value + 1
    if architecture == "gpt2" and key.endswith(".weight") and value.ndim == 2 and ".w" not in key.removesuffix(".weight"):
        return np.ascontiguousarray(value.T)
    return value


def header(path, architecture, config, extra):
    """A file with the settings of a model."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(getattr(config, "intermediate_size", None) or config.n_inner)
    writer.add_head_count(config.num_attention_heads)
    if architecture == "gpt2":
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
    elif architecture == "starcoder2":
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_layer_norm_eps(config.norm_epsilon)
    else:
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    for add, value in extra.items():
        if add == "rope_freqs":
            writer.add_tensor("rope_freqs.weight", value)
        else:
            getattr(writer, add)(value)
    writer.add_token_list(["<unk>", "a", "b"])
    return writer


def finished(writer, path, model):
    """Writes the file, and what the library computes."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with torch.no_grad():
        logits = model(IDS).logits
    np.savez_compressed(f"{path}.io.npz", in_input_ids=IDS.numpy(), out_logits=logits.numpy())


def write(folder, name, architecture, model, names, kind, extra):
    """Writes a model, and gives it the weights that the file holds."""
    config = model.config
    writer = header(f"{folder}/{name}.gguf", architecture, config, extra)
    for key, parameter in model.named_parameters():
        value = parameter.detach().numpy()
        packed = kind if value.ndim == 2 and value.shape[-1] % 32 == 0 else Kind.F32
        out = stored(architecture, key, value, config)
        quantised = gguf.quants.quantize(np.ascontiguousarray(out), packed)
        writer.add_tensor(named(key, names), quantised, raw_dtype=packed)
        back = gguf.quants.dequantize(quantised, packed).reshape(out.shape)
        with torch.no_grad():
            parameter += torch.from_numpy(np.ascontiguousarray(back_of(architecture, key, back - out, config)))
    finished(writer, f"{folder}/{name}", model)


def back_of(architecture, key, value, config):
    """A difference of weights in the library's order."""
    if architecture in LIKE_LLAMA and ("q_proj.weight" in key or "k_proj.weight" in key):
        heads = config.num_attention_heads if "q_proj" in key else config.num_key_value_heads
        half = value.shape[0] // heads // 2
        return value.reshape(heads, half, 2, *value.shape[1:]).swapaxes(1, 2).reshape(value.shape)
    if architecture == "gpt2":
        return stored(architecture, key, value, config)
    return value


def filled(model, seed):
    torch.manual_seed(seed)
    for parameter in model.parameters():
        torch.nn.init.uniform_(parameter, -0.5, 0.5)
    model.tie_weights()
    return model.eval()


def slowed(theta, width, factor, low, high, context):
    """By what llama.cpp's converter divides the frequencies of Llama 3."""
    frequencies = 1.0 / theta ** (np.arange(0, width, 2) / width)
    lengths = 2 * np.pi / frequencies
    smooth = (context / lengths - low) / (high - low)
    between = 1 / ((1 - smooth) / factor + smooth)
    return np.where(lengths < context / high, 1.0, np.where(lengths > context / low, factor, between)).astype(np.float32)


def models(folder):
    theta = dict(rope_parameters=dict(rope_type="default", rope_theta=50.0))
    heads = dict(num_key_value_heads=2)
    eager = dict(attn_implementation="eager")
    gemma = dict(SMALL, **heads, head_dim=8)
    later = dict(gemma, query_pre_attn_scalar=8, sliding_window=3, num_hidden_layers=3)
    base, length = dict(add_rope_freq_base=50.0), dict(add_key_length=8)
    for seed, (name, architecture, config, cls, names, kind, extra) in enumerate([
        ("llama", "llama", hf.LlamaConfig(**SMALL, **heads, **theta), hf.LlamaForCausalLM, LLAMA, Kind.F32, base),
        ("llama_3", "llama", hf.LlamaConfig(**SMALL, **heads, rope_parameters=dict(
            rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8,
            rope_theta=50.0)), hf.LlamaForCausalLM, LLAMA, Kind.F32, dict(base, rope_freqs=slowed(50.0, 8, 8.0, 1.0, 4.0, 8))),
        ("llama_linear", "llama", hf.LlamaConfig(**SMALL, **heads, rope_parameters=dict(rope_type="linear", factor=4.0, rope_theta=50.0)),
         hf.LlamaForCausalLM, LLAMA, Kind.F32, dict(base, add_rope_scaling_type=gguf.RopeScalingType.LINEAR, add_rope_scaling_factor=4.0)),
        ("llama_tied_bf16", "llama", hf.LlamaConfig(**SMALL, **heads, tie_word_embeddings=True), hf.LlamaForCausalLM, LLAMA, Kind.BF16, {}),
        ("llama_f16", "llama", hf.LlamaConfig(**SMALL, **heads), hf.LlamaForCausalLM, LLAMA, Kind.F16, {}),
        ("llama_q8_0", "llama", hf.LlamaConfig(**SMALL, **heads), hf.LlamaForCausalLM, LLAMA, Kind.Q8_0, {}),
        ("llama_q4_0", "llama", hf.LlamaConfig(**SMALL, **heads), hf.LlamaForCausalLM, LLAMA, Kind.Q4_0, {}),
        ("qwen2", "qwen2", hf.Qwen2Config(**SMALL, **heads), hf.Qwen2ForCausalLM, LLAMA, Kind.F32, {}),
        ("qwen3", "qwen3", hf.Qwen3Config(**SMALL, **heads, head_dim=8), hf.Qwen3ForCausalLM, LLAMA, Kind.F32, length),
        ("gemma", "gemma", hf.GemmaConfig(**gemma), hf.GemmaForCausalLM, GEMMA, Kind.F32, length),
        ("gemma2", "gemma2", hf.Gemma2Config(**later, attn_logit_softcapping=5.0, final_logit_softcapping=3.0, **eager),
         hf.Gemma2ForCausalLM, GEMMA, Kind.F32, dict(length, add_sliding_window=3, add_attn_logit_softcapping=5.0, add_final_logit_softcapping=3.0)),
        ("gemma3", "gemma3", hf.Gemma3TextConfig(**later), hf.Gemma3ForCausalLM, GEMMA, Kind.F32,
         dict(length, add_sliding_window=3, add_rope_freq_base=1e6)),
        ("phi3", "phi3", hf.Phi3Config(**SMALL, **heads, pad_token_id=None), hf.Phi3ForCausalLM, LLAMA, Kind.F32,
         dict(add_sliding_window=0)),
        ("gpt2", "gpt2", hf.GPT2Config(vocab_size=19, n_embd=32, n_head=4, n_layer=2, n_inner=64, n_positions=16),
         hf.GPT2LMHeadModel, GPT2, Kind.F32, {}),
        ("phi3_part", "phi3", hf.Phi3Config(**SMALL, **heads, pad_token_id=None, partial_rotary_factor=0.75, sliding_window=3),
         hf.Phi3ForCausalLM, LLAMA, Kind.F32, dict(add_rope_dimension_count=6, add_sliding_window=3)),
        ("olmo2", "olmo2", hf.Olmo2Config(**SMALL, **heads), hf.Olmo2ForCausalLM, OLMO, Kind.F32, {}),
        ("granite", "granite", hf.GraniteConfig(**SMALL, **heads, embedding_multiplier=3.0, logits_scaling=2.0,
                                                residual_multiplier=0.5, attention_multiplier=0.25),
         hf.GraniteForCausalLM, LLAMA, Kind.F32, dict(add_embedding_scale=3.0, add_logit_scale=2.0, add_residual_scale=0.5, add_attention_scale=0.25)),
        ("smollm3", "smollm3", hf.SmolLM3Config(**dict(SMALL, num_hidden_layers=5), **heads, pad_token_id=None, rope_parameters=dict(rope_type="default", rope_theta=50.0)),
         hf.SmolLM3ForCausalLM, LLAMA, Kind.F32, base),
        ("starcoder2", "starcoder2", hf.Starcoder2Config(**SMALL, **heads), hf.Starcoder2ForCausalLM, PLAIN, Kind.F32, {}),
    ]):
        names = dict(names, post_attention_layernorm="ffn_norm") if architecture == "gemma" else names
        write(folder, name, architecture, filled(cls(config), seed), names, kind, extra)


ATTENTION = {key: name for key, name in LLAMA.items() if not key.startswith("mlp.")}
MIXTRAL = dict(ATTENTION, **{"mlp.gate": "ffn_gate_inp"})
QWEN_MOE = dict(MIXTRAL, **{
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp", "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp", "mlp.shared_expert.down_proj": "ffn_down_shexp"})
GPT_OSS = dict(ATTENTION, post_attention_layernorm="post_attention_norm", **{"mlp.router": "ffn_gate_inp"})


def arrays_of(key, value, names):
    """Arrays of the file that hold a parameter, by name, each with its part of the parameter."""
    layer, end = key.rsplit(".", 1)
    block = "blk." + (key.split(".") + ["", ""])[2]
    if key.endswith("_bias"):
        arrays = dict(ffn_gate_exps=value[:, ::2], ffn_up_exps=value[:, 1::2]) if "gate_up" in key else dict(ffn_down_exps=value)
        return {f"{block}.{array}.bias": part for array, part in arrays.items()}
    if end == "gate_up_proj" and names is GPT_OSS:
        turned = value.swapaxes(1, 2)
        return {f"{block}.ffn_gate_exps.weight": turned[:, ::2], f"{block}.ffn_up_exps.weight": turned[:, 1::2]}
    if end == "down_proj" and names is GPT_OSS:
        return {f"{block}.ffn_down_exps.weight": value.swapaxes(1, 2)}
    if end == "gate_up_proj":
        half = value.shape[1] // 2
        return {f"{block}.ffn_gate_exps.weight": value[:, :half], f"{block}.ffn_up_exps.weight": value[:, half:]}
    if end == "down_proj":
        return {f"{block}.ffn_down_exps.weight": value}
    if end == "sinks":
        return {f"{block}.attn_sinks.weight": value}
    # The converter writes a matrix of one row as a vector.
    return {named(key, names): value[0] if layer.endswith("shared_expert_gate") else value}


def experts(folder):
    """Models whose feed-forward parts are experts, all matrices of one kind in an array."""
    sizes = dict(SMALL, num_key_value_heads=2, hidden_size=32)
    counts = dict(add_expert_count=4, add_expert_used_count=2)
    inner, shared = dict(add_expert_feed_forward_length=64), dict(add_expert_shared_feed_forward_length=96)
    qwen = dict(sizes, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64)
    for seed, (name, architecture, config, cls, names, kind, extra) in enumerate([
        ("mixtral", "llama", hf.MixtralConfig(**sizes, num_local_experts=4, rope_theta=10000.0), hf.MixtralForCausalLM, MIXTRAL, Kind.F32,
         dict(counts, add_rope_freq_base=10000.0)),
        ("qwen2moe", "qwen2moe", hf.Qwen2MoeConfig(**qwen, shared_expert_intermediate_size=96), hf.Qwen2MoeForCausalLM, QWEN_MOE,
         Kind.F32, {**counts, **inner, **shared}),
        ("qwen3moe", "qwen3moe", hf.Qwen3MoeConfig(**qwen, head_dim=16, norm_topk_prob=True), hf.Qwen3MoeForCausalLM,
         QWEN_MOE, Kind.Q8_0, {**counts, **inner, "add_key_length": 16}),
        ("gpt-oss", "gpt-oss", hf.GptOssConfig(**sizes, num_local_experts=4, num_experts_per_tok=2, head_dim=16, sliding_window=3),
         hf.GptOssForCausalLM, GPT_OSS, Kind.MXFP4,
         dict(counts, **inner, add_key_length=16, add_sliding_window=3, add_rope_freq_base=150000.0,
              add_rope_scaling_type=gguf.RopeScalingType.YARN, add_rope_scaling_factor=32.0, add_rope_scaling_orig_ctx_len=4096)),
    ]):
        model = filled(cls(config), 40 + seed)
        writer = header(f"{folder}/{name}.gguf", architecture, config, extra)
        for key, parameter in model.named_parameters():
            for array, value in arrays_of(key, parameter.detach().numpy(), names).items():
                router = "ffn_gate_inp" in array
                packed = kind if value.ndim > 1 and value.shape[-1] % 32 == 0 and not router else Kind.F32
                out = np.ascontiguousarray(stored(architecture, key, value, config))
                quantised = gguf.quants.quantize(out, packed)
                writer.add_tensor(array, quantised, raw_dtype=packed)
                back = gguf.quants.dequantize(quantised, packed).reshape(out.shape) - out
                # A view of the parameter, which gains what the file's numbers differ by.
                value += np.ascontiguousarray(back_of(architecture, key, back, config))
        finished(writer, f"{folder}/{name}", model)


# Where scales are in a block, from its front or its end, and bytes of them.
SCALES = {Kind.Q6_K: (-2, 2), Kind.Q4_K: (0, 4), Kind.Q5_K: (0, 4), Kind.Q4_1: (0, 4), Kind.Q5_1: (0, 4), Kind.Q2_K: (-4, 4),
          Kind.Q3_K: (-2, 2), Kind.TQ1_0: (-2, 2), Kind.TQ2_0: (-2, 2)}


LATTICES = [Kind.IQ1_S, Kind.IQ1_M, Kind.IQ2_XXS, Kind.IQ2_XS, Kind.IQ2_S, Kind.IQ3_XXS, Kind.IQ3_S, Kind.TQ1_0, Kind.TQ2_0]


def random_blocks(random, kind, rows, columns):
    """Random bytes with scales that are no infinities, block by block."""
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    packed = random.integers(0, 256, (rows, columns // elements, size), dtype=np.uint8)
    if kind == Kind.MXFP4:
        packed[:, :, 0] = random.integers(110, 140, packed.shape[:2])
        return packed
    scales = random.normal(size=(rows, columns // elements, 2)).astype(np.float16).view(np.uint8)
    if kind == Kind.IQ1_M:
        # Four bits in each of four words.
        scales = scales.view(np.uint16)[:, :, 0]
        for word in range(4):
            packed[:, :, 49 + 2 * word] = packed[:, :, 49 + 2 * word] & 15 | scales >> 4 * word << 4 & 240
        return packed
    at, width = SCALES.get(kind, (0, 2))
    at = at % size
    packed[:, :, at:at + width] = scales[:, :, :width]
    return packed


def numbers_of_blocks(path):
    """Adds to tests/data/ggml_blocks.json what the package makes of blocks of the formats that are not there yet."""
    with open(path) as file:
        stored = json.load(file)
    random = np.random.default_rng(5)
    for kind in [Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q2_K, Kind.Q3_K, Kind.Q5_K, Kind.IQ4_NL, Kind.IQ4_XS, Kind.MXFP4]:
        packed = random_blocks(random, kind, 1, 2 * gguf.GGML_QUANT_SIZES[kind][0]).reshape(1, -1)
        found = gguf.quants.dequantize(packed, kind).astype(np.float32).view(np.uint32)
        stored.setdefault(kind.name.lower(), {"bytes": packed.ravel().tolist(), "bits": found.ravel().tolist()})
    with open(path, "w") as file:
        json.dump(stored, file, separators=(",", ":"))


def mixed(folder):
    """Llamas whose matrices are random blocks, each of another type, with a head of their own and tied to the words."""
    random = np.random.default_rng(11)
    sizes = dict(vocab_size=19, hidden_size=256, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
                 num_hidden_layers=2, intermediate_size=64, max_position_embeddings=16)
    wide = [Kind.Q4_K, Kind.Q6_K, Kind.Q2_K, Kind.Q3_K, Kind.Q5_K, Kind.IQ4_XS]
    narrow = [Kind.Q8_0, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.IQ4_NL, Kind.MXFP4]
    for name, tied in [("llama_mixed", False), ("llama_mixed_tied", True)]:
        model = filled(hf.LlamaForCausalLM(hf.LlamaConfig(**sizes, tie_word_embeddings=tied)), 29)
        writer = header(f"{folder}/{name}.gguf", "llama", model.config, dict(add_key_length=16, add_value_length=16))
        turns = dict.fromkeys((256, 64), 0)
        for key, parameter in model.named_parameters():
            value = parameter.detach().numpy()
            if value.ndim == 1:
                writer.add_tensor(named(key, LLAMA), value)
                continue
            rows, columns = value.shape
            kinds = wide + narrow[::-1] if columns == 256 else narrow
            kind = kinds[turns[columns] % len(kinds)]
            turns[columns] += 1
            packed = random_blocks(random, kind, rows, columns).reshape(rows, -1)
            # Scales such that numbers are as large as those of other models.
            back = gguf.quants.dequantize(packed, kind).reshape(rows, columns)
            packed = weaker(packed.reshape(rows, -1, gguf.GGML_QUANT_SIZES[kind][1]), kind, np.abs(back).mean() * 8).reshape(rows, -1)
            back = gguf.quants.dequantize(packed, kind).reshape(rows, columns).astype(np.float32)
            writer.add_tensor(named(key, LLAMA), packed, raw_dtype=kind)
            with torch.no_grad():
                parameter.copy_(torch.from_numpy(np.ascontiguousarray(back_of("llama", key, back, model.config))))
        finished(writer, f"{folder}/{name}", model)


def weaker(packed, kind, by):
    """Blocks whose scales are divided by a number."""
    packed = packed.copy()
    if kind == Kind.MXFP4:
        packed[:, :, 0] -= int(np.log2(by))
        return packed
    at, width = SCALES.get(kind, (0, 2))
    at = at % packed.shape[2]
    scales = np.ascontiguousarray(packed[:, :, at:at + width]).view(np.float16)
    packed[:, :, at:at + width] = (scales / by).astype(np.float16).view(np.uint8)
    return packed


def blocks(folder):
    """A tensor of each type, of random bytes with scales that are no infinities."""
    random = np.random.default_rng(3)
    writer = gguf.GGUFWriter(f"{folder}/blocks.gguf", "llama")
    arrays = {}
    for kind, rows, columns in [(Kind.F32, 3, 5), (Kind.F16, 3, 5), (Kind.BF16, 3, 5), (Kind.Q8_0, 3, 64), (Kind.Q4_0, 3, 64),
                                (Kind.Q4_K, 3, 512), (Kind.Q6_K, 3, 512), (Kind.Q4_1, 3, 64), (Kind.Q5_0, 3, 64),
                                (Kind.Q5_1, 3, 64), (Kind.Q2_K, 3, 512), (Kind.Q3_K, 3, 512), (Kind.Q5_K, 3, 512),
                                (Kind.IQ4_NL, 3, 64), (Kind.IQ4_XS, 3, 512), (Kind.MXFP4, 3, 64),
                                *((kind, 3, 512) for kind in LATTICES)]:
        name = kind.name.lower()
        if kind in (Kind.F32, Kind.F16, Kind.BF16):
            packed = gguf.quants.quantize(random.normal(size=(rows, columns)).astype(np.float32), kind)
        else:
            packed = random_blocks(random, kind, rows, columns).reshape(rows, -1)
        writer.add_tensor(name, packed, raw_dtype=kind)
        arrays[name] = gguf.quants.dequantize(packed, kind).reshape(rows, columns).astype(np.float32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    np.savez_compressed(f"{folder}/blocks.npz", **arrays)


if __name__ == "__main__":
    os.makedirs(sys.argv[1], exist_ok=True)
    hf.logging.set_verbosity_error()
    models(sys.argv[1])
    experts(sys.argv[1])
    mixed(sys.argv[1])
    blocks(sys.argv[1])
