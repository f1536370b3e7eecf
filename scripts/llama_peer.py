#!/usr/bin/env python3
"""Decoding beside llama.cpp: the same GGUF file, the same cores, in one run.

    pip install numpy gguf llama-cpp-python        # the last is built from source, for this machine
    # (where the machine shows AMX and does not give it: CMAKE_ARGS="-DGGML_NATIVE=OFF -DGGML_AVX512=ON -DGGML_AVX512_VNNI=ON ...")
    python scripts/llama_peer.py target/release/partition [FOLDER] [--threads N] [--tokens N] [--repeat N] [--kinds F16,Q8_0,Q4_0]
    python scripts/llama_peer.py target/release/partition [FOLDER] --prompt 512
    python scripts/llama_peer.py target/release/partition [FOLDER] --shape width=1280,heads=10,shared=2,inner=3456,layers=4

Makes a llama of 100 million random weights for each type of weights (mixed types as llama.cpp's quantiser makes them: `--kinds Q4_K_M`), lets both programs decode greedily from the same
prompt, in turns, and prints the best and the median tokens per second of each as a table of Markdown. Both have the same
cores, as many as `--threads`. `--prompt N` times the reading of a prompt of N tokens instead. `--processor-time` divides by the
processor's time, which other work on the machine changes less than the clock. `--split` adds this program on two virtual
devices that share the cores; `--plain` keeps llama.cpp from its buffers of repacked weights, among them those for AMX, which end
it where the machine shows AMX and does not give it. `--shape` is another llama. What instruction sets llama.cpp was built with is printed first.
"""

import argparse
import os
import re
import resource
import statistics
import subprocess
import sys

import numpy as np

SHAPE = dict(vocabulary=16384, width=768, layers=12, heads=12, shared=4, inner=2048, context=1024)
# Types that llama.cpp's own quantiser makes of a file of F16, by its numbers (`llama_ftype`).
MIXED = {"Q4_1": 3, "Q5_0": 8, "Q5_1": 9, "Q2_K": 10, "Q3_K_M": 12, "Q4_K_M": 15, "Q5_K_M": 17, "Q6_K": 18, "IQ4_NL": 25, "IQ4_XS": 30}
# Tokens of a run from which the time of another is counted: what both do before them is not.
FEW = 8
# Tokens of the prompt of a run that times decoding.
SHORT = 32


def prompt_of(length):
    return [1] + [5 + i * 37 % 1000 for i in range(length - 1)]


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


def quantised(path, plain, kind):
    """Writes what llama.cpp's own quantiser makes of a file, in a process of its own."""
    code = f"""
import llama_cpp
params = llama_cpp.llama_model_quantize_default_params()
params.ftype = {MIXED[kind]}
raise SystemExit(llama_cpp.llama_model_quantize({plain.encode()!r}, {path.encode()!r}, params))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)


def of_llama(path, given):
    """Tokens per second of llama.cpp, in a process of its own, and the tokens that it chose first."""
    code = f"""
import time, llama_cpp, numpy as np
if {given.plain}:
    defaults = llama_cpp.llama_cpp.llama_model_default_params
    def without():
        params = defaults()
        params.use_extra_bufts = False
        return params
    llama_cpp.llama_cpp.llama_model_default_params = llama_cpp.llama_model_default_params = without
clock = time.process_time if {given.processor_time} else time.perf_counter
threads, prompt = {given.threads}, {prompt_of(given.prompt or SHORT)}
llama = llama_cpp.Llama({path!r}, n_ctx={SHAPE['context']}, n_threads=threads, n_threads_batch=threads, n_batch=512, verbose=False)
if {bool(given.prompt)}:
    llama.eval(prompt)
    llama.reset()
start = clock()
llama.eval(prompt)
read = len(prompt) / (clock() - start)
scores = lambda: llama_cpp.llama_get_logits_ith(llama.ctx, -1)
best = lambda: int(np.argmax(np.ctypeslib.as_array(scores(), shape=({SHAPE['vocabulary']},))))
token, out, start = best(), [], clock()
for _ in range({FEW if given.prompt else given.tokens}):
    out.append(token)
    llama.eval([token])
    token = best()
written = len(out) / (clock() - start)
print(read if {bool(given.prompt)} else written, out[:{FEW}])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    speed, first = done.stdout.split(" ", 1)
    return float(speed), first.strip()


def run_ours(path, kind, given, devices, length, tokens):
    """A run of this program with a prompt of some length: what it printed, and the processor's time that it took."""
    prompt = ",".join(map(str, prompt_of(length)))
    command = [given.binary, "generate", path, "-d", devices, "--tokens", prompt, "--max-tokens", str(tokens),
               "--context", str(SHAPE["context"])]
    if devices.startswith("2x"):
        command += ["--use", "all"]
    if kind == "F16":
        command += ["--precision", "f16"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(done.stderr)
    return done, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def of_ours(path, kind, given, devices):
    """Tokens per second of this program, and the tokens that it chose first."""
    length, tokens = (given.prompt, FEW) if given.prompt else (SHORT, given.tokens)
    done, time_of_many = run_ours(path, kind, given, devices, length, tokens)
    first = re.findall(r"\d+", done.stdout)[:FEW]
    if given.processor_time:
        few = (FEW, FEW) if given.prompt else (SHORT, FEW)
        _, time_of_few = run_ours(path, kind, given, devices, *few)
        speed = ((given.prompt or tokens) - FEW) / (time_of_many - time_of_few)
    else:
        of = "prompt" if given.prompt else "generated"
        found = re.search(of + r": \d+ tokens, ([\d.,]+) tokens/s", done.stderr)
        if not found:
            raise SystemExit("no speed in:\n" + done.stderr)
        speed = float(found.group(1).replace(",", ""))
    return speed, "[" + ", ".join(first) + "]"


def built_with():
    """The instruction sets that llama.cpp says it uses here."""
    code = "import llama_cpp; print(llama_cpp.llama_print_system_info().decode())"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip()


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
    arguments.add_argument("--prompt", type=int, metavar="TOKENS")
    arguments.add_argument("--processor-time", action="store_true")
    arguments.add_argument("--shape", default="", metavar="FIELD=N,...")
    given = arguments.parse_args()
    changed = dict(field.split("=") for field in given.shape.split(",") if field)
    SHAPE.update({field: int(number) for field, number in changed.items()})
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-given.threads:])
    os.makedirs(given.folder, exist_ok=True)
    devices = ["cpu"] + (["2xcpu"] if given.split else [])
    print(built_with(), end="\n\n")
    print("| weights | llama.cpp, tokens/s | " + " | ".join(f"ours on `{one}`" for one in devices) + " | ours : llama.cpp |")
    print("|---|---|" + "---|" * len(devices) + "---|")
    for kind in given.kinds.split(","):
        shape = "".join(f".{field}{number}" for field, number in changed.items())
        path, plain = (f"{given.folder}/{one.lower()}{shape}.gguf" for one in (kind, "F16"))
        if kind in MIXED and not os.path.exists(plain):
            made(plain, "F16")
        if not os.path.exists(path):
            quantised(path, plain, kind) if kind in MIXED else made(path, kind)
        runs = {name: [] for name in ["llama.cpp", *devices]}
        heads = {}
        for _ in range(given.repeat):
            for name in runs:
                speed, head = of_llama(path, given) if name == "llama.cpp" else of_ours(path, kind, given, name)
                runs[name].append(speed)
                heads[name] = head
        shown = {name: f"{max(speeds):.1f} (median {statistics.median(speeds):.1f})" for name, speeds in runs.items()}
        ratio = statistics.median(runs["cpu"]) / statistics.median(runs["llama.cpp"])
        print(f"| {kind} | " + " | ".join(shown.values()) + f" | {ratio:.2f} |", flush=True)
        if len(set(heads.values())) > 1:
            print(f"{kind}: first tokens differ: {heads}", file=sys.stderr)


if __name__ == "__main__":
    main()
