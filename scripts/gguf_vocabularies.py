"""Makes tests/vocabularies: GGUF files that hold a vocabulary and nothing else, with the tokens that `sentencepiece` and
`tokenizers` give texts by the same vocabulary.

    pip install gguf sentencepiece tokenizers
    python scripts/gguf_vocabularies.py tests/vocabularies
"""

import io
import json
import os
import sys

import gguf
import sentencepiece as sp
import tokenizers as tk
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

folder = sys.argv[1]
os.makedirs(folder, exist_ok=True)
CORPUS = [open(name, encoding="utf-8").read() for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "LICENSE-APACHE")]
LINES = [line for text in CORPUS for line in text.splitlines() if line.strip()]
TEXTS = ["Once upon a time", " a space before", "two  spaces,   three\n\nlines\tand tabs ", "Größe 123456 und 7",
         "naïve café, 日本語 👩‍🚀", "don't I'LL we've", "x", "fn main() {\n    let y = 3.5e-7;\n}\n", "",
         "The planner proper (cost graph + topology) knows nothing of operations."]
LLAMA_3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN_2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CASED = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+%s|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*%s|"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
GPT_4O = CASED % (("(?i:'s|'t|'re|'ve|'m|'ll|'d)?",) * 2) + r"\p{N}{1,3}" + REST
TEKKEN = CASED % ("", "") + r"\p{N}" + REST


QWEN_35 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
DEEPSEEK_3 = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
SHORT = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
KIMI = "|".join([r"[\p{Han}]+", rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{SHORT}", rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{SHORT}",
                 r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
BAILING = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
SEED = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
BLOOM = r" ?[^(\s|[.,!?…。，、।۔،])]+"


def write(name, architecture, fill, cases):
    writer = gguf.GGUFWriter(f"{folder}/{name}.gguf", architecture)
    fill(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with open(f"{folder}/{name}.json", "w", encoding="utf-8") as file:
        json.dump(cases, file, ensure_ascii=False, indent=0)


def sentence_piece(name, prefix):
    model = io.BytesIO()
    sp.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES), model_writer=model, vocab_size=700, model_type="bpe", byte_fallback=True,
        character_coverage=0.99, normalization_rule_name="identity", remove_extra_whitespaces=False, add_dummy_prefix=prefix,
        user_defined_symbols=["<tool>"], split_digits=True, allow_whitespace_only_pieces=True, minloglevel=2)
    p = sp.SentencePieceProcessor(model_proto=model.getvalue())

    def kind(i):
        return (gguf.TokenType.UNKNOWN if p.is_unknown(i) else gguf.TokenType.CONTROL if p.is_control(i)
                else gguf.TokenType.BYTE if p.is_byte(i) else gguf.TokenType.USER_DEFINED if p.id_to_piece(i) == "<tool>"
                else gguf.TokenType.NORMAL)

    def fill(writer):
        ids = range(p.get_piece_size())
        writer.add_tokenizer_model("llama")
        writer.add_tokenizer_pre("default")
        writer.add_token_list([p.id_to_piece(i) for i in ids])
        writer.add_token_scores([p.get_score(i) for i in ids])
        writer.add_token_types([kind(i) for i in ids])
        writer.add_bos_token_id(p.bos_id())
        writer.add_eos_token_id(p.eos_id())
        writer.add_unk_token_id(p.unk_id())
        if not prefix:
            writer.add_add_space_prefix(False)

    texts = [text for text in TEXTS if text]
    write(name, "llama", fill, [[text, [p.bos_id()] + p.encode(text)] for text in texts])


def byte_pairs(name, pre, splits, normalizer=None, ignore_merges=False, begins=False):
    tokenizer = tk.Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = splits
    tokenizer.decoder = decoders.ByteLevel()
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.train_from_iterator(LINES, trainers.BpeTrainer(
        vocab_size=600, special_tokens=["<|begin|>", "<|end|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False))
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    special = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL

    def fill(writer):
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(pre)
        writer.add_token_list(tokens)
        writer.add_token_types([special[0] if token in ("<|begin|>", "<|end|>") else special[1] for token in tokens])
        writer.add_token_merges([" ".join(pair) for pair in model["merges"]])
        writer.add_bos_token_id(0)
        writer.add_eos_token_id(1)

    texts = TEXTS + ["<|begin|>text<|end|>"]
    write(name, "gpt2", fill, [[text, [0] * begins + tokenizer.encode(text).ids] for text in texts if text])


def split(*steps):
    by = [pre_tokenizers.Split(tk.Regex(step), "isolated") if isinstance(step, str) else step for step in steps]
    return pre_tokenizers.Sequence([*by, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


level = pre_tokenizers.ByteLevel(add_prefix_space=False)
sentence_piece("spm", True)
sentence_piece("spm_no_prefix", False)
byte_pairs("gpt2", "gpt-2", level)
byte_pairs("llama3", "llama-bpe", split(LLAMA_3), ignore_merges=True, begins=True)
byte_pairs("qwen2", "qwen2", split(QWEN_2), normalizer=normalizers.NFC())
byte_pairs("dbrx", "dbrx", split(LLAMA_3))
byte_pairs("gpt4o", "gpt-4o", split(GPT_4O))
byte_pairs("tekken", "tekken", split(TEKKEN), ignore_merges=True, begins=True)
byte_pairs("smollm", "smollm", pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), level]))
digits = pre_tokenizers.Digits(individual_digits=True)
byte_pairs("qwen35", "qwen35", split(QWEN_35), normalizer=normalizers.NFC())
byte_pairs("deepseek_coder", "deepseek-coder", split(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", digits))
byte_pairs("deepseek_v3", "deepseek-v3", split(r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", DEEPSEEK_3))
byte_pairs("superbpe", "superbpe", split(r"\p{N}+", r"(?=(\d{3})+(?!\d))"))
byte_pairs("kimi", "kimi-k2", split(KIMI))
byte_pairs("bailing", "bailingmoe", split(BAILING))
byte_pairs("seed", "seed-coder", split(SEED))
byte_pairs("viking", "viking", split(BLOOM, digits))
byte_pairs("aya", "tiny_aya", split(r"\d{1,3}(?=(?:\d{3})*\b)", GPT_4O))
