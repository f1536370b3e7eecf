"""Makes tests/tokenizers: small tokenizers of each kind, and what transformers makes of texts with them.

    pip install transformers tokenizers
    python scripts/tokenizer_cases.py tests/tokenizers

Each folder holds the files that `save_pretrained` writes and `cases.json`: texts with their tokens, and lists of tokens
with their text. Lists are also of single bytes of characters and of random tokens.
"""

import json
import os
import random
import sys

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

TEXTS = ["Once upon a time, there was a planner.", "  two  spaces and\ttabs\nlines\n\n", "naïve façade, 10^6 bytes: 42%",
         "Grüße an die Straße — „so“", "日本語のテキスト", "emoji 👩‍🚀 and 🦀!", "</s> in the middle <s>", "don't can't I'll", ""]
CORPUS = [text for text in TEXTS if text] * 3 + ["the quick brown fox jumps over the lazy dog", "planner planned plans"] * 5


def bpe():
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=330, special_tokens=["<|end|>"],
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tok.train_from_iterator(CORPUS, trainer)
    return tok, dict(bos_token="<|end|>", eos_token="<|end|>")


def split_bpe():
    """As Llama 3 has it: a regular expression with a look-ahead, and a template that begins every text."""
    tok, names = bpe()
    expression = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    from tokenizers import Regex
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(expression), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.post_processor = processors.TemplateProcessing(single="<|end|> $A", special_tokens=[("<|end|>", tok.token_to_id("<|end|>"))])
    return tok, names


def fallback():
    """As Llama 2 has it: pieces with ▁ for spaces, bytes for what there is no piece for."""
    tok = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tok.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tok.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    specials = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=340, special_tokens=specials, limit_alphabet=40)
    tok.train_from_iterator(CORPUS, trainer)
    # Bytes are no special tokens, as in the published files.
    whole = json.loads(tok.to_str())
    whole["added_tokens"] = [token for token in whole["added_tokens"] if token["id"] < 3]
    return Tokenizer.from_str(json.dumps(whole)), dict(bos_token="<s>", eos_token="</s>", unk_token="<unk>", add_bos_token=True)


def unigram():
    tok = Tokenizer(models.Unigram())
    tok.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC()])
    tok.pre_tokenizer = pre_tokenizers.Metaspace()
    tok.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=150, special_tokens=["<unk>", "<s>", "</s>"], unk_token="<unk>")
    tok.train_from_iterator(CORPUS, trainer)
    tok.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    return tok, dict(bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def wordpiece():
    tok = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tok.normalizer = normalizers.BertNormalizer()
    tok.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tok.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=200, special_tokens=["[UNK]", "[CLS]", "[SEP]"])
    tok.train_from_iterator(CORPUS, trainer)
    tok.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)])
    tok.enable_truncation(4)
    tok.enable_padding(length=12)
    return tok, dict(cls_token="[CLS]", sep_token="[SEP]", unk_token="[UNK]", pad_token="[UNK]")


def begun_by_configuration(path):
    """Beside a `tokenizer.json` the library does not heed this flag: without a template nothing is added."""
    for name, change in [("tokenizer.json", dict(post_processor=None)), ("tokenizer_config.json", dict(add_bos_token=True))]:
        with open(f"{path}/{name}") as file:
            whole = json.load(file)
        with open(f"{path}/{name}", "w") as file:
            json.dump(dict(whole, **change), file, ensure_ascii=False, indent=2)


def main(folder):
    for make in [bpe, split_bpe, fallback, unigram, wordpiece]:
        path = f"{folder}/{make.__name__}"
        os.makedirs(path, exist_ok=True)
        tok, names = make()
        PreTrainedTokenizerFast(tokenizer_object=tok, **names).save_pretrained(path)
        if make is fallback:
            begun_by_configuration(path)
        fast = PreTrainedTokenizerFast.from_pretrained(path)
        encoded = [[text, fast(text, truncation=False, padding=False)["input_ids"]] for text in TEXTS]
        r = random.Random(1)
        lists = [ids for _, ids in encoded if ids]
        lists += [[r.randrange(len(fast)) for _ in range(40)] for _ in range(4)]
        decoded = [[ids, fast.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)] for ids in lists]
        with open(f"{path}/cases.json", "w") as file:
            json.dump({"encoded": encoded, "decoded": decoded}, file, ensure_ascii=False, indent=0)


main(sys.argv[1])
