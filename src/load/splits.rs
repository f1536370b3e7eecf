//! How a text is split before the bytes of each piece are joined, by the name that GGUF files give it
//! (`tokenizer.ggml.pre`): the regular expressions that the models were published with.

use serde_json::{Value, json};

/// GPT-2 and what came after: by the expression that byte pair encoding over bytes has anyway.
const GPT_2: Split = Split { steps: &[], by_bytes: true, ..PLAIN };

/// What a split has where its model says nothing else.
const PLAIN: Split =
    Split { steps: &[], by_bytes: false, composes: false, whole_words: false, begins: false };

const LLAMA_3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// As Llama 3's, but that digits stand alone.
const QWEN_2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// As Qwen 2's, but that marks go with their letters.
const QWEN_3_5: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Words by their case.
const GPT_4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// So in Mistral's later models, but for what English shortens, and by digit.
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// So in Youtu, by digit.
const YOUTU: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const YOUTU_SCRIPTS: &str = r"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+";
/// So in Kimi K2, where Han characters are words of their own.
const KIMI_K2: &str = r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Letters of alphabets, as DeepSeek LLM lists them; those are numbers here that another form of text would exchange.
const DEEPSEEK_LETTERS: &str = r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅ\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC}ℂℇℊ-ℓℕℙ-ℝ\x{2124}\x{2126}\x{2128}\x{212A}-\x{212D}ℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+";
const DEEPSEEK_SIGNS: &str = r"\s?[!-/:-~！-／：-～‘-‟　-。]+";
const DEEPSEEK_SCRIPTS: &str = "[一-龥ࠀ-一가-퟿]+";
const DEEPSEEK_3_SCRIPTS: &str = "[一-龥぀-ゟ゠-ヿ]+";
const DEEPSEEK_3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;
const BAILING: &str = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+";
const SEED_CODER: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+";
const BLOOM: &str = r" ?[^(\s|[.,!?…。，、।۔،])]+";

/// One after the other, each splits the pieces that the one before leaves.
#[derive(Clone, Copy)]
enum Step {
    /// What a regular expression matches, and what lies between.
    By(&'static str),
    /// Digits, each by itself.
    Digits,
}

/// How a kind of vocabulary treats a text.
#[derive(Clone, Copy)]
pub(super) struct Split {
    steps: &'static [Step],
    /// Whether what is left is split by the expression of GPT-2.
    by_bytes: bool,
    /// Whether letters are composed with their marks before.
    pub(super) composes: bool,
    /// Whether a piece that is a token is not joined from its bytes.
    pub(super) whole_words: bool,
    /// Whether a text begins with the first of the special tokens where the file does not say.
    pub(super) begins: bool,
}

const fn by(steps: &'static [Step]) -> Split {
    Split { steps, ..PLAIN }
}

impl Split {
    /// None where a name is not known.
    pub(super) fn of(name: &str) -> Option<Self> {
        use Step::{By, Digits};
        Some(match name {
            "default" | "gpt-2" | "gpt2" | "phi-2" | "olmo" | "mpt" | "jais" | "trillion" | "exaone4"
            | "granite-docling" | "gigachat" | "mellum" | "modern-bert" | "a.x-4.0" | "roberta-bpe"
            | "jina-es" | "jina-de" | "jina-v1-en" | "jina-v2-es" | "jina-v2-de" | "jina-v2-code" => GPT_2,
            "smollm" | "starcoder" | "refact" | "command-r" | "codeshell" | "exaone" | "minerva-7b" => {
                Self { steps: &[Digits], ..GPT_2 }
            }
            "llama-bpe" | "llama3" | "llama-v3" | "falcon3" | "falcon-h1" | "lfm2" | "pixtral"
            | "midm-2.0" => Self { whole_words: true, begins: true, ..by(&[By(LLAMA_3)]) },
            "dbrx" | "smaug-bpe" | "glm4" | "chatglm-bpe" => by(&[By(LLAMA_3)]),
            "gpt-4o" | "llama4" | "kanana2" | "minimax-m2" => by(&[By(GPT_4O)]),
            "tiny_aya" | "cohere2moe" => by(&[By(r"\d{1,3}(?=(?:\d{3})*\b)"), By(GPT_4O)]),
            "tekken" => Self { whole_words: true, begins: true, ..by(&[By(TEKKEN)]) },
            "youtu" => Self { whole_words: true, ..by(&[By(YOUTU_SCRIPTS), By(YOUTU)]) },
            "kimi-k2" => by(&[By(KIMI_K2)]),
            "qwen2" => Self { composes: true, ..by(&[By(QWEN_2)]) },
            "stablelm2" | "deepseek-r1-qwen" | "megrez" | "hunyuan" | "solar-open" | "grok-2" => {
                by(&[By(QWEN_2)])
            }
            "qwen35" => Self { composes: true, ..by(&[By(QWEN_3_5)]) },
            "deepseek-llm" => by(&[
                By(r"[\r\n]"),
                By(DEEPSEEK_LETTERS),
                By(DEEPSEEK_SIGNS),
                By(r"\s+$"),
                By(DEEPSEEK_SCRIPTS),
                Digits,
            ]),
            "deepseek-coder" => {
                by(&[By(r"[\r\n]"), By(r"\s?\p{L}+"), By(r"\s?\p{P}+"), By(DEEPSEEK_SCRIPTS), Digits])
            }
            "deepseek-v3" | "hunyuan-dense" | "joyai-llm" => {
                by(&[By(r"\p{N}{1,3}"), By(DEEPSEEK_3_SCRIPTS), By(DEEPSEEK_3)])
            }
            "superbpe" => by(&[By(r"\p{N}+"), By(r"(?=(\d{3})+(?!\d))")]),
            "bailingmoe" | "bailingmoe2" | "llada-moe" => by(&[By(BAILING)]),
            "seed-coder" => by(&[By(SEED_CODER)]),
            "bloom" | "poro-chat" | "gpt3-finnish" => by(&[By(BLOOM)]),
            "viking" => by(&[By(BLOOM), Digits]),
            _ => return None,
        })
    }

    /// The steps as a `tokenizer.json` has them; bytes come last.
    pub(super) fn steps(&self) -> Value {
        let steps = self.steps.iter().map(|step| match step {
            Step::By(regex) => {
                json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false})
            }
            Step::Digits => json!({"type": "Digits", "individual_digits": true}),
        });
        let all: Vec<Value> = steps.chain([bytes(self.by_bytes)]).collect();
        json!({"type": "Sequence", "pretokenizers": all})
    }
}

/// Characters that stand for bytes, after a split by the expression of GPT-2 or as they are.
pub(super) fn bytes(use_regex: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex})
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, PreTokenizerWrapper};

    /// The pieces of a text, without what stands for its spaces.
    fn pieces(name: &str, text: &str) -> Vec<String> {
        let steps = Split::of(name).unwrap().steps();
        let steps: PreTokenizerWrapper = serde_json::from_value(steps).unwrap();
        let mut whole = PreTokenizedString::from(text);
        steps.pre_tokenize(&mut whole).unwrap();
        let splits = whole.get_splits(OffsetReferential::Original, OffsetType::Byte);
        splits.into_iter().map(|(_, (from, to), _)| text[from..to].to_owned()).collect()
    }

    #[test]
    fn texts_are_split_as_the_models_say() {
        let text = "Größe 1234\n日本 don't  ";
        for (name, expected) in [
            ("gpt-2", &["Größe", " 1234", "\n", "日本", " don", "'t", "  "][..]),
            (
                "deepseek-llm",
                &["Gr", "öß", "e", " ", "1", "2", "3", "4", "\n", "日本", " don", "'", "t", "  "],
            ),
            ("deepseek-v3", &["Größe", " ", "123", "4", "\n", "日本", " don", "'t", "  "]),
            ("superbpe", &["Größe ", "1", "234", "\n日本 don't  "]),
            ("youtu", &["Größe", " ", "1", "2", "3", "4", "\n", "日本", " don't", "  "]),
            ("kimi-k2", &["Größe", " ", "123", "4", "\n", "日本", " don't", "  "]),
        ] {
            assert_eq!(pieces(name, text), expected, "{name}");
        }
        assert!(Split::of("unknown").is_none());
    }
}
