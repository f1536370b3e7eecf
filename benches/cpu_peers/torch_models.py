"""The networks of the table as torch has them, weights made up, with arguments of the same sizes: what
torchvision and transformers give under the names that the exported files tell."""


def _vision(name):
    def make(torch, dims):
        import torchvision

        return getattr(torchvision.models, name)(), (torch.rand(dims.get("batch", 1), 3, 224, 224),)

    return make


def _tokens(torch, dims, batch, length, words):
    return torch.randint(1, words, (dims.get("batch", batch), dims.get("seq", length)))


def _bert(torch, dims):
    import transformers

    class Both(torch.nn.Module):
        """The two outputs, as a tuple."""

        def __init__(self):
            super().__init__()
            self.model = transformers.BertModel(transformers.BertConfig())

        def forward(self, ids, mask):
            made = self.model(input_ids=ids, attention_mask=mask)
            return made.last_hidden_state, made.pooler_output

    ids = _tokens(torch, dims, 2, 32, 100)
    return Both(), (ids, torch.ones_like(ids))


def _logits(torch, model, ids):
    class Logits(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, ids):
            return self.model(input_ids=ids, use_cache=False).logits

    return Logits(), (ids,)


def _gpt2(torch, dims):
    import transformers

    return _logits(torch, transformers.GPT2LMHeadModel(transformers.GPT2Config()), _tokens(torch, dims, 1, 64, 100))


def _llama(torch, dims):
    import transformers

    config = transformers.LlamaConfig(
        hidden_size=512,
        intermediate_size=1376,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=2,
        vocab_size=8000,
    )
    # The exported length is fixed.
    ids = _tokens(torch, {"batch": dims.get("batch", 2)}, 2, 64, 100)
    return _logits(torch, transformers.LlamaForCausalLM(config), ids)


MODELS = {
    "resnet50": _vision("resnet50"),
    "mobilenet_v3_large": _vision("mobilenet_v3_large"),
    "vit_b_16": _vision("vit_b_16"),
    "bert_base": _bert,
    "gpt2": _gpt2,
    "llama_small": _llama,
}


def model(torch, name, dims):
    """A function and its arguments; None for a network that is not listed."""
    make = MODELS.get(name)
    if make is None:
        return None
    network, arguments = make(torch, dims)
    return network.eval(), arguments
