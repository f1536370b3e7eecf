#!/usr/bin/env python3
"""Decoding beside llama.cpp: the same GGUF file, the same cores, in one run.

    pip install numpy gguf llama-cpp-python        # the last is built from source, for this machine
    # (where the machine shows AMX and does not give it: CMAKE_ARGS="-DGGML_NATIVE=OFF -DGGML_AVX512=ON -DGGML_AVX512_VNNI=ON ...")
    python scripts/llama_peer.py target/release/partition [FOLDER] [--threads N] [--tokens N] [--repeat N] [--kinds F16,Q8_0,Q4_0]

Makes a llama of 100 million random weights for each type of weights, lets both programs decode greedily from the same
prompt, in turns, and prints the best and the median tokens per second of each as a table of Markdown. `--split` adds this
program on two virtual devices that share the cores; `--plain` keeps llama.cpp from its buffers of repacked weights, among them
those for AMX, which end it where the machine shows AMX and does not give it.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
import time

import numpy as np

SHAPE = dict(vocabulary=16384, width=768, layers=12, heads=12, shared=4, inner=2048, context=1024)
PROMPT = [1] + [5 + i * 37 % 1000 for i in range(31)]


def made(path, kind):
    import gguf
    rng = np.random.default_rng(7)
    s = SHAPE
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(s["context"])
    writer.add_embedding_length(s["width"])
    writer.add_block_count(s["layers"])
    writer.add_feed_forward_length(s["inner"])
    writer.add_head_count(s["heads"])
    writer.add_head_count_kv(s["shared"])
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(s["width"] // s["heads"])
    writer.add_vocab_size(s["vocabulary"])
    # A vocabulary is needed to load the file, and never read: prompts are numbers.
    tokens = [b"<unk>", b"<s>", b"</s>"] + [f"t{i}".encode() for i in range(3, s["vocabulary"])]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_types([2, 3, 3] + [1] * (len(tokens) - 3))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    of_kind = getattr(gguf.GGMLQuantizationType, kind)

    def matrix(name, rows, columns):
        weight = rng.standard_normal((rows, columns), np.float32) * columns**-0.5
        if kind == "F16":
            writer.add_tensor(name, weight.astype(np.float16))
        elif kind == "F32":
            writer.add_tensor(name, weight)
        else:
            writer.add_tensor(name, gguf.quants.quantize(weight, of_kind), raw_dtype=of_kind)

    ones = np.ones(s["width"], np.float32)
    keys = s["width"] // s["heads"] * s["shared"]
    matrix("token_embd.weight", s["vocabulary"], s["width"])
    for layer in range(s["layers"]):
        block = f"blk.{layer}."
        writer.add_tensor(block + "attn_norm.weight", ones)
        writer.add_tensor(block + "ffn_norm.weight", ones)
        matrix(block + "attn_q.weight", s["width"], s["width"])
        matrix(block + "attn_k.weight", keys, s["width"])
        matrix(block + "attn_v.weight", keys, s["width"])
        matrix(block + "attn_output.weight", s["width"], s["width"])
        matrix(block + "ffn_gate.weight", s["inner"], s["width"])
        matrix(block + "ffn_up.weight", s["inner"], s["width"])
        matrix(block + "ffn_down.weight", s["width"], s["inner"])
    writer.add_tensor("output_norm.weight", ones)
    matrix("output.weight", s["vocabulary"], s["width"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def of_llama(path, threads, tokens, plain):
    """Tokens per second of llama.cpp, in a process of its own."""
    code = f"""
import time, llama_cpp, numpy as np
if {plain}:
    defaults = llama_cpp.llama_cpp.llama_model_default_params
    def without():
        params = defaults()
        params.use_extra_bufts = False
        return params
    llama_cpp.llama_cpp.llama_model_default_params = llama_cpp.llama_model_default_params = without
llama = llama_cpp.Llama({path!r}, n_ctx={SHAPE['context']}, n_threads={threads}, n_threads_batch={threads}, n_batch=128, verbose=False)
llama.eval({PROMPT!r})
scores = lambda: llama_cpp.llama_get_logits_ith(llama.ctx, -1)
best = lambda: int(np.argmax(np.ctypeslib.as_array(scores(), shape=({SHAPE['vocabulary']},))))
token, out, start = best(), [], time.perf_counter()
for _ in range({tokens} - 1):
    out.append(token)
    llama.eval([token])
    token = best()
print(({tokens} - 1) / (time.perf_counter() - start), out[:8])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    speed, first = done.stdout.split(" ", 1)
    return float(speed), first.strip()


def of_ours(binary, path, kind, tokens, devices):
    """Tokens per second of this program."""
    packed = [] if kind in ("F16", "F32") else ["--weights-as", kind.lower()]
    prompt = ",".join(map(str, PROMPT))
    command = [binary, "generate", path, "-d", devices, "--tokens", prompt, "--max-tokens", str(tokens),
               "--context", str(SHAPE["context"]), *packed]
    if devices.startswith("2x"):
        command += ["--use", "all"]
    if kind == "F16":
        command += ["--precision", "f16"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    speed = re.search(r"generated: \d+ tokens, ([\d.,]+) tokens/s", done.stderr)
    if not speed:
        raise SystemExit("no speed in:\n" + done.stderr)
    first = re.findall(r"\d+", done.stdout)[:8]
    return float(speed.group(1).replace(",", "")), "[" + ", ".join(first) + "]"


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("binary")
    arguments.add_argument("folder", nargs="?", default="target/llama_cpp")
    arguments.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    arguments.add_argument("--tokens", type=int, default=128)
    arguments.add_argument("--repeat", type=int, default=5)
    arguments.add_argument("--kinds", default="F16,Q8_0,Q4_0")
    arguments.add_argument("--split", action="store_true")
    arguments.add_argument("--plain", action="store_true")
    given = arguments.parse_args()
    os.makedirs(given.folder, exist_ok=True)
    devices = ["cpu"] + (["2xcpu"] if given.split else [])
    print("| weights | llama.cpp, tokens/s | " + " | ".join(f"ours on `{one}`" for one in devices) + " | ours : llama.cpp |")
    print("|---|---|" + "---|" * len(devices) + "---|")
    for kind in given.kinds.split(","):
        path = f"{given.folder}/{kind.lower()}.gguf"
        if not os.path.exists(path):
            made(path, kind)
        runs = {name: [] for name in ["llama.cpp", *devices]}
        heads = {}
        for _ in range(given.repeat):
            for name in runs:
                speed, head = of_llama(path, given.threads, given.tokens, given.plain) if name == "llama.cpp" \
                    else of_ours(given.binary, path, kind, given.tokens, name)
                runs[name].append(speed)
                heads[name] = head
        shown = {name: f"{max(speeds):.1f} (median {statistics.median(speeds):.1f})" for name, speeds in runs.items()}
        ratio = max(runs["cpu"]) / max(runs["llama.cpp"])
        print(f"| {kind} | " + " | ".join(shown.values()) + f" | {ratio:.2f} |", flush=True)
        if len(set(heads.values())) > 1:
            print(f"{kind}: first tokens differ: {heads}", file=sys.stderr)


if __name__ == "__main__":
    main()
