"""Makes tests/quantised: checkpoints of few bits as tools publish them, and what the library computes of their numbers.

    pip install torch transformers safetensors compressed-tensors bitsandbytes
    python scripts/quantised_checkpoints.py tests/quantised

GPTQ's and AWQ's words are written here, from their published layout; those of compressed-tensors and bitsandbytes by these
libraries. Logits are those of the same model with each weight unpacked to f32 (by numpy here, or by the library that packed it),
in f32. Each folder has config.json, its weights, and io.npz.
"""

import json
import os
import sys

import bitsandbytes.functional as bnb
import numpy as np
import torch
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import fake_quantize
from compressed_tensors.quantization.utils import compute_dynamic_scales_and_zp
from safetensors.torch import save_file
from transformers import GptOssConfig, GptOssForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

IDS = torch.arange(14).reshape(2, 7) * 5 % 12
GROUP = 16


def words(integers, bits, axis, order=None):
    """Integers of few bits in words of 32 along an axis: the first in the lowest bits, or in another order."""
    each = 32 // bits
    integers = np.moveaxis(integers.astype(np.uint32), axis, 0)
    packed = np.zeros((-(-integers.shape[0] // each),) + integers.shape[1:], np.uint32)
    order = list(order or range(each))
    for place, own in enumerate(order):
        some = integers[own::each]
        packed[: len(some)] |= some << np.uint32(place * bits)
    return torch.from_numpy(np.ascontiguousarray(np.moveaxis(packed, 0, axis)).view(np.int32))


def numbers(random, rows, columns, bits, groups):
    """Integers, zero points and scales of a matrix: those of rows and groups."""
    integers = random.integers(0, 2**bits, (rows, columns))
    zeros = random.integers(1, 2**bits - 1, (rows, groups))
    scales = random.uniform(0.2, 1.0, (rows, groups)) * 2.0 ** (1 - bits)
    return integers, zeros, scales.astype(np.float16)


def unpacked(integers, zeros, scales, group_of):
    return (integers - zeros[:, group_of]).astype(np.float32) * scales.astype(np.float32)[:, group_of]


def gptq(bits, size, less_one, is_ordered=False):
    def layer(random, name, rows, columns):
        groups = columns // size if size > 0 else 1
        group_of = np.arange(columns) // (columns // groups)
        if is_ordered:
            group_of = random.permutation(group_of)
        integers, zeros, scales = numbers(random, rows, columns, bits, groups)
        stored = (zeros - (1 if less_one else 0)) % 2**bits
        arrays = {
            "qweight": words(integers.T, bits, 0), "qzeros": words(stored.T, bits, 1),
            "scales": torch.from_numpy(scales.T.copy()), "g_idx": torch.from_numpy(group_of.astype(np.int32)),
            # Some tools write what a layer does not have.
            "bias": torch.zeros(rows, dtype=torch.float16),
        }
        return arrays, unpacked(integers, zeros, scales, group_of)
    config = {"quant_method": "gptq", "bits": bits, "group_size": size, "desc_act": is_ordered, "sym": False,
              "damp_percent": 0.01, "true_sequential": True, "checkpoint_format": "gptq" if less_one else "gptq_v2"}
    return config, layer


def awq():
    def layer(random, name, rows, columns):
        group_of = np.arange(columns) // GROUP
        integers, zeros, scales = numbers(random, rows, columns, 4, columns // GROUP)
        order = [0, 2, 4, 6, 1, 3, 5, 7]
        arrays = {
            "qweight": words(integers.T, 4, 1, order), "qzeros": words(zeros.T, 4, 1, order),
            "scales": torch.from_numpy(scales.T.copy()),
        }
        return arrays, unpacked(integers, zeros, scales, group_of)
    config = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm",
              "modules_to_not_convert": None}
    return config, layer


def compressed(bits, size, is_packed, symmetric=True, is_ordered=False, rounds=False):
    def layer(random, name, rows, columns):
        groups = columns // size if size else 1
        group_of = np.arange(columns) // (columns // groups)
        if is_ordered:
            group_of = random.permutation(group_of)
        integers, zeros, scales = numbers(random, rows, columns, bits, groups)
        half = 2 ** (bits - 1)
        zeros = np.full_like(zeros, half) if symmetric else zeros
        signed = torch.from_numpy((integers - half).astype(np.int8))
        arrays = {"weight_scale": torch.from_numpy(scales.astype(np.float32)).bfloat16()}
        scales = arrays["weight_scale"].float().numpy()
        of_zeros = torch.from_numpy((zeros - half).astype(np.int8))
        if is_packed:
            arrays["weight_packed"] = pack_to_int32(signed, bits)
            arrays["weight_shape"] = torch.tensor([rows, columns])
            if not symmetric:
                arrays["weight_zero_point"] = pack_to_int32(of_zeros, bits, packed_dim=0).contiguous()
            if is_ordered:
                arrays["weight_g_idx"] = torch.from_numpy(group_of.astype(np.int32))
        else:
            arrays["weight"] = signed
            if not symmetric:
                arrays["weight_zero_point"] = of_zeros
        return arrays, unpacked(integers, zeros, scales, group_of)
    weights = {"num_bits": bits, "type": "int", "symmetric": symmetric, "strategy": "group" if size else "channel",
               "group_size": size or None, "dynamic": False, "actorder": "group" if is_ordered else None,
               "observer": "minmax", "observer_kwargs": {}, "block_structure": None}
    inputs = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True, "group_size": None,
              "actorder": None, "observer": None, "observer_kwargs": {}, "block_structure": None}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs if rounds else None,
             "output_activations": None}
    config = {"quant_method": "compressed-tensors", "format": "pack-quantized" if is_packed else "int-quantized",
              "config_groups": {"group_0": group}, "ignore": ["lm_head"], "kv_cache_scheme": None,
              "quantization_status": "compressed", "global_compression_ratio": 1.5}
    return config, layer


def small_floats(kind):
    """Floats of 4 bits of compressed-tensors, and of ModelOpt."""
    size, is_mx = (32, True) if kind == "mxfp4-pack-quantized" else (16, False)

    def layer(random, name, rows, columns):
        packed = torch.from_numpy(random.integers(0, 256, (rows, columns // 2)).astype(np.uint8))
        numbers = unpack_fp4_from_uint8(packed, rows, columns, dtype=torch.float32)
        if is_mx:
            scales = torch.from_numpy(random.integers(122, 126, (rows, columns // size)).astype(np.uint8))
            factors, arrays = torch.exp2(scales.float() - 127), {}
        else:
            scales = torch.from_numpy(random.uniform(8, 64, (rows, columns // size)).astype(np.float32)).to(torch.float8_e4m3fn)
            own = torch.tensor([400.0 if kind.startswith("nvfp4") else 0.003])
            factors = scales.float() / own if kind.startswith("nvfp4") else scales.float() * own
            arrays = {"weight_global_scale": own} if kind.startswith("nvfp4") else {"weight_scale_2": own, "input_scale": own.clone()}
        weight = numbers * factors.repeat_interleave(size, 1)
        return dict(arrays, weight_scale=scales, **{"weight" if kind == "modelopt" else "weight_packed": packed}), weight.numpy()
    if kind == "modelopt":
        return {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}, layer
    weights = {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "group" if is_mx else "tensor_group", "group_size": size,
               "dynamic": False, "observer": "minmax"}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None}
    return {"quant_method": "compressed-tensors", "format": kind, "config_groups": {"group_0": group}, "ignore": ["lm_head"]}, layer


def four_bits(kind, nested):
    def layer(random, name, rows, columns):
        weight = torch.from_numpy(random.uniform(-0.4, 0.4, (rows, columns)).astype(np.float32))
        packed, state = bnb.quantize_4bit(weight, blocksize=64, compress_statistics=nested, quant_type=kind)
        arrays = {"weight": packed}
        for key, array in state.as_dict(packed=True).items():
            arrays[f"weight.{key}"] = array
        return arrays, bnb.dequantize_4bit(packed, state).float().numpy()
    config = {"quant_method": "bitsandbytes", "load_in_4bit": True, "_load_in_4bit": True, "_load_in_8bit": False,
              "load_in_8bit": False, "bnb_4bit_compute_dtype": "float16", "bnb_4bit_quant_type": kind,
              "bnb_4bit_quant_storage": "uint8", "bnb_4bit_use_double_quant": nested, "llm_int8_threshold": 6.0,
              "llm_int8_has_fp16_weight": False, "llm_int8_skip_modules": None}
    return config, layer


def eight_bits():
    def layer(random, name, rows, columns):
        weight = torch.from_numpy(random.uniform(-0.4, 0.4, (rows, columns)).astype(np.float16))
        integers, largest, _ = bnb.int8_vectorwise_quant(weight)
        arrays = {"weight": integers, "SCB": largest, "weight_format": torch.tensor(0, dtype=torch.uint8)}
        return arrays, bnb.int8_vectorwise_dequant(integers, largest).float().numpy()
    config = {"quant_method": "bitsandbytes", "load_in_8bit": True, "_load_in_8bit": True, "load_in_4bit": False,
              "llm_int8_threshold": 6.0, "llm_int8_skip_modules": None, "llm_int8_has_fp16_weight": False}
    return config, layer


CASES = {
    "gptq_4": gptq(4, GROUP, True),
    "gptq_8_v2": gptq(8, 32, False),
    "gptq_rows": gptq(4, -1, True),
    "gptq_ordered": gptq(4, GROUP, True, is_ordered=True),
    "awq": awq(),
    "words_4": compressed(4, GROUP, True),
    "words_4_zeros": compressed(4, GROUP, True, symmetric=False),
    "words_4_ordered": compressed(4, GROUP, True, is_ordered=True),
    "words_8": compressed(8, 0, True),
    "bytes": compressed(8, 0, False),
    "bytes_zeros": compressed(8, 0, False, symmetric=False),
    "bytes_rounded": compressed(8, 0, False, rounds=True),
    "nf4_nested": four_bits("nf4", True),
    "fp4": four_bits("fp4", False),
    "int8": eight_bits(),
    "mxfp4_rows": small_floats("mxfp4-pack-quantized"),
    "nvfp4": small_floats("nvfp4-pack-quantized"),
    "nvfp4_modelopt": small_floats("modelopt"),
}


def rounded(args):
    """What a layer reads, as compressed-tensors rounds it."""
    def hook(module, inputs):
        scale, zero = compute_dynamic_scales_and_zp(inputs[0], args, module)
        return (fake_quantize(inputs[0], scale, zero, args),)
    return hook


def stored(path, model, arrays, quantization, shards=1):
    os.makedirs(path, exist_ok=True)
    config = json.loads(model.config.to_json_string(use_diff=False))
    config.update(architectures=[type(model).__name__], quantization_config=quantization)
    with open(f"{path}/config.json", "w") as file:
        json.dump(config, file, indent=1, sort_keys=True)
    arrays = {name: array.contiguous() for name, array in arrays.items()}
    if shards == 1:
        save_file(arrays, f"{path}/model.safetensors")
    else:
        places = {}
        for number in range(shards):
            file = f"model-{number + 1:05}-of-{shards:05}.safetensors"
            own = dict(list(arrays.items())[number::shards])
            save_file(own, f"{path}/{file}")
            places.update({name: file for name in own})
        with open(f"{path}/model.safetensors.index.json", "w") as file:
            json.dump({"metadata": {}, "weight_map": places}, file, indent=1, sort_keys=True)
    with torch.no_grad():
        logits = model(IDS).logits
    np.savez(f"{path}/io.npz", in_input_ids=IDS.numpy(), out_logits=logits.numpy())


def llama(folder):
    for seed, (name, (quantization, layer)) in enumerate(CASES.items()):
        # Where a number is in the middle between two, the last bits decide what it is rounded to; here none is.
        random = np.random.default_rng(40 if name == "bytes_rounded" else seed)
        torch.manual_seed(seed)
        model = LlamaForCausalLM(LlamaConfig(
            vocab_size=12, hidden_size=64, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=1,
            intermediate_size=64, max_position_embeddings=8, tie_word_embeddings=False)).eval()
        arrays = {}
        for key, parameter in model.named_parameters():
            torch.nn.init.uniform_(parameter, -0.5, 0.5)
            parameter.data = parameter.data.half().float()
            if not key.endswith("proj.weight"):
                arrays[key] = parameter.detach().half()
                continue
            own, weight = layer(random, key, *parameter.shape)
            parameter.data = torch.from_numpy(np.ascontiguousarray(weight))
            stem = key.removesuffix("weight")
            arrays.update({f"{stem}{end}": array for end, array in own.items()})
        if name == "bytes_rounded":
            inputs = quantization["config_groups"]["group_0"]["input_activations"]
            args = QuantizationArgs(**{key: value for key, value in inputs.items() if value is not None})
            for key, module in model.named_modules():
                if key.endswith("proj"):
                    module.register_forward_pre_hook(rounded(args))
        stored(f"{folder}/{name}", model, arrays, quantization, shards=2 if name in ("gptq_4", "int8") else 1)


def gpt_oss(folder):
    torch.manual_seed(3)
    model = GptOssForCausalLM(GptOssConfig(
        vocab_size=12, hidden_size=32, head_dim=16, num_attention_heads=2, num_key_value_heads=1, num_hidden_layers=1,
        intermediate_size=32, num_local_experts=2, num_experts_per_tok=1, max_position_embeddings=64, sliding_window=4,
        layer_types=["sliding_attention"], rope_parameters={"rope_type": "default", "rope_theta": 100.0})).eval()
    arrays = {}
    for key, parameter in model.named_parameters():
        torch.nn.init.uniform_(parameter, -0.5, 0.5)
        parameter.data = parameter.data.half().float()
        if key.endswith(("experts.gate_up_proj", "experts.down_proj")):
            experts, columns, rows = parameter.shape
            blocks = torch.randint(0, 256, (experts, rows, columns // 32, 16), dtype=torch.uint8)
            scales = torch.randint(122, 126, (experts, rows, columns // 32), dtype=torch.uint8)
            parameter.data = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32).contiguous()
            arrays[f"{key}_blocks"], arrays[f"{key}_scales"] = blocks, scales
        else:
            arrays[key] = parameter.detach().half()
    quantization = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
    stored(f"{folder}/mxfp4", model, arrays, quantization)


if __name__ == "__main__":
    llama(sys.argv[1])
    gpt_oss(sys.argv[1])
