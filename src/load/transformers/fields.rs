//! Fields of configurations that leave the forward pass in evaluation as it is, in all families
//! that are read. Taken from the configuration classes of transformers 5.23, its generation
//! settings, and from what older versions and common tools wrote.

/// True where a field never changes what a network computes.
pub(super) fn has_no_effect(name: &str) -> bool {
    WITHOUT_EFFECT.iter().any(|group| group.contains(&name))
}

const WITHOUT_EFFECT: &[&[&str]] = &[ORIGIN, RESULTS, TRAINING, TOKENS, GENERATION, LEGACY];

/// Where a configuration comes from, and what reads it.
const ORIGIN: &[&str] = &[
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_attn_implementation_internal",
    "_commit_hash",
    "_name_or_path",
    "attn_implementation",
    "dtype",
    "is_llama_config",
    "name_or_path",
    "torch_dtype",
    "transformers.js_config",
    "transformers_version",
    "unsloth_fixed",
    "unsloth_version",
];

/// What is returned beside the result, and by which means it is computed.
const RESULTS: &[&str] = &[
    "chunk_size_feed_forward",
    "output_attentions",
    "output_hidden_states",
    "output_past",
    "output_router_logits",
    "pretraining_tp",
    "return_dict",
    "torchscript",
    "use_bfloat16",
    "use_cache",
    "use_return_dict",
];

/// Initialisation, dropout, losses, and sizes of heads that a model does not have.
const TRAINING: &[&str] = &[
    "attention_dropout",
    "attention_probs_dropout_prob",
    "activation_dropout",
    "attn_pdrop",
    "classifier_dropout",
    "dropout",
    "dropout_rate",
    "embedding_dropout",
    "embd_pdrop",
    "embed_dropout",
    "finetuning_task",
    "gradient_checkpointing",
    "hidden_dropout",
    "hidden_dropout_prob",
    "id2label",
    "initializer_factor",
    "initializer_range",
    "init_std",
    "decoder_layerdrop",
    "encoder_layerdrop",
    "layerdrop",
    "router_aux_loss_coef",
    "router_jitter_noise",
    "label2id",
    "num_labels",
    "problem_type",
    "qa_dropout",
    "resid_pdrop",
    "resid_dropout",
    "residual_dropout",
    "seq_classif_dropout",
    "sinusoidal_pos_embds",
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
    "task_specific_params",
    "tf_legacy_loss",
];

/// Numbers of special tokens: their rows of the embedding are as good as any.
const TOKENS: &[&str] = &[
    "bos_token_id",
    "cls_token_id",
    "decoder_start_token_id",
    "eos_token_id",
    "mask_token_id",
    "pad_token_id",
    "prefix",
    "sep_token_id",
    "tokenizer_class",
    "unk_token_id",
];

/// How text is generated.
const GENERATION: &[&str] = &[
    "assistant_confidence_threshold",
    "assistant_lookbehind",
    "bad_words_ids",
    "begin_suppress_tokens",
    "diversity_penalty",
    "do_sample",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "encoder_repetition_penalty",
    "epsilon_cutoff",
    "eta_cutoff",
    "exponential_decay_length_penalty",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "length_penalty",
    "max_length",
    "max_new_tokens",
    "min_length",
    "no_repeat_ngram_size",
    "num_assistant_tokens",
    "num_assistant_tokens_schedule",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "output_scores",
    "remove_invalid_values",
    "repetition_penalty",
    "return_dict_in_generate",
    "suppress_tokens",
    "target_lookbehind",
    "temperature",
    "top_k",
    "top_p",
    "typical_p",
];

/// What published files of the families carry and no version of the library reads for them.
const LEGACY: &[&str] = &[
    "attention_softmax_in_fp32",
    "bias_dropout_fusion",
    "cache_implementation",
    "directionality",
    "initial_context_length",
    "masked_softmax_fusion",
    "offset_alibi",
    "max_position_embeddings",
    "n_ctx",
    "n_positions",
    "original_max_position_embeddings",
    "pooler_fc_size",
    "pooler_num_attention_heads",
    "pooler_num_fc_layers",
    "pooler_size_per_head",
    "pooler_type",
    "seq_length",
    "skip_bias_add",
    "skip_bias_add_qkv",
    "tie_encoder_decoder",
    "tie_weights_",
];
