"""Scheme `hf`: language models of the `transformers` library, from its configuration classes and published sizes.

The encoders are BERT (https://arxiv.org/abs/1810.04805), DistilBERT (https://arxiv.org/abs/1910.01108) and the encoder
of T5 (https://arxiv.org/abs/1910.10683). The generating models are GPT-2 (Radford and others, 2019) and TinyLlama
(https://arxiv.org/abs/2401.02385). A text is random tokens without padding.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torchwise.errors import TargetError
from torchwise_models.libraries.build import Normal, Whole, build
from torchwise_models.libraries.options import Options, import_library, parse, suggest_names
from torchwise_models.libraries.wrappers import DecodingStep, PlainOutputs, Prefill

if TYPE_CHECKING:
    import torch
    from torch import nn

    from torchwise.workload import Workload

NUMBERS: Mapping[str, int | None] = {"batch": 1, "length": 128, "layers": None, "width": None, "vocabulary": None}


@dataclass(frozen=True, slots=True)
class TextModel:
    """A published model, as data.

    Attributes:
        config: its configuration class in `transformers`.
        model: its model class.
        figures: its differences from the defaults of the configuration class.
        inner: the name of the width between the two layers of a feed-forward block, or None if the library derives it.
        generates: whether it predicts the next token, and so supports a decoding step.
    """

    config: str
    model: str
    figures: Mapping[str, int] = field(default_factory=dict)
    inner: str | None = None
    generates: bool = False


def _bert(**figures: int) -> TextModel:
    return TextModel("BertConfig", "BertModel", figures, "intermediate_size")


def _gpt2(**figures: int) -> TextModel:
    return TextModel("GPT2Config", "GPT2LMHeadModel", figures, generates=True)


def _t5(**figures: int) -> TextModel:
    return TextModel("T5Config", "T5EncoderModel", figures, "d_ff")


CATALOGUE: Mapping[str, TextModel] = {
    "bert-base-uncased": _bert(),
    "bert-large-uncased": _bert(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096),
    "distilbert-base-uncased": TextModel("DistilBertConfig", "DistilBertModel", {}, "hidden_dim"),
    "t5-small": _t5(),
    "t5-base": _t5(d_model=768, d_ff=3072, num_layers=12, num_heads=12),
    "t5-large": _t5(d_model=1024, d_ff=4096, num_layers=24, num_heads=16),
    "gpt2": _gpt2(),
    "gpt2-medium": _gpt2(n_embd=1024, n_layer=24, n_head=16),
    "gpt2-large": _gpt2(n_embd=1280, n_layer=36, n_head=20),
    "gpt2-xl": _gpt2(n_embd=1600, n_layer=48, n_head=25),
    "tinyllama-1.1b": TextModel(
        "LlamaConfig",
        "LlamaForCausalLM",
        {
            "hidden_size": 2048,
            "intermediate_size": 5632,
            "num_hidden_layers": 22,
            "num_attention_heads": 32,
            "num_key_value_heads": 4,
        },
        "intermediate_size",
        generates=True,
    ),
}


def load_hf(name: str, *, device: str = "cpu", dtype: torch.dtype | None = None, seed: int = 0) -> Workload:
    """Build `name`, which is `MODEL[@OPTIONS]` with a model of `CATALOGUE`.

    It maps token ids (batch, length) to the outputs of the library's model. An encoder returns the last hidden state
    (batch, length, width), followed for BERT by the pooled state (batch, width). A generating model returns the logits
    (batch, length, vocabulary) with keys and values (see `Prefill`), or with the word `train` the logits alone. With
    the word `decode`, the workload is one step of generation after `length` tokens (see `DecodingStep`).

    Args:
        name: such as "gpt2@decode,batch=1,length=128". `layers`, `width` and `vocabulary` change the model itself. Its
            heads keep their size, and its other widths their proportion.
        device: device of weights and inputs, which are drawn on the CPU.
        dtype: dtype if the options name none, by default float32.
        seed: seed of weights and inputs.

    Raises:
        TargetError: there is no such model or option, the options do not fit the model, or the library is missing.
    """
    model, _, text = name.partition("@")
    if model not in CATALOGUE:
        word = model.rpartition("/")[2]  # names on the Hub begin with the owner
        raise TargetError(f"hf has no model {model!r}{suggest_names(word, CATALOGUE)}")
    entry = CATALOGUE[model]
    options = parse(f"hf:{model}", text, numbers=NUMBERS, flags=("decode", "train"))
    _check_words(entry, options)
    transformers = import_library("transformers", options.target)
    config = _config(transformers, entry, options)
    _check_length(config, options)
    return build(
        f"hf:{name}",
        functools.partial(_make, transformers, entry, config, options),
        functools.partial(_inputs, config, options),
        options,
        device=device,
        dtype=dtype,
        seed=seed,
    )


def _make(transformers: Any, entry: TextModel, config: Any, options: Options) -> nn.Module:
    model = getattr(transformers, entry.model)(config)
    if "decode" in options.flags:
        return DecodingStep(model)
    # Training generates nothing, but the backward pass would keep the unused keys and values.
    return Prefill(model) if entry.generates and "train" not in options.flags else PlainOutputs(model)


def _inputs(config: Any, options: Options, batch: int) -> tuple[Any, ...]:
    length = options.number("length")
    if "decode" not in options.flags:
        return (Whole((batch, length), config.vocab_size),)
    heads = getattr(config, "num_key_value_heads", config.num_attention_heads)  # fewer if queries share them
    one = Normal((batch, heads, length, _head_size(config)))
    return (Whole((batch, 1), config.vocab_size), ((one, one),) * config.num_hidden_layers)


def _config(transformers: Any, entry: TextModel, options: Options) -> Any:
    """Make the configuration, with the sizes from the options.

    Raises:
        TargetError: the width is no multiple of the head size.
    """
    config = getattr(transformers, entry.config)(**entry.figures)
    config.use_cache = entry.generates and "train" not in options.flags
    config.num_hidden_layers = options.numbers["layers"] or config.num_hidden_layers
    config.vocab_size = options.numbers["vocabulary"] or config.vocab_size
    if (width := options.numbers["width"]) is not None:
        _resize(config, entry, width)
    return config


def _resize(config: Any, entry: TextModel, width: int) -> None:
    size, before = _head_size(config), config.hidden_size
    if width % size:
        raise TargetError(f"width is {width}, but must be a multiple of {size}, the size of a head")
    shared = config.num_attention_heads // getattr(config, "num_key_value_heads", config.num_attention_heads)
    if entry.inner is not None:
        setattr(config, entry.inner, getattr(config, entry.inner) * width // before)
    config.hidden_size = width
    config.num_attention_heads = width // size
    if shared > 1:
        if width // size % shared:
            raise TargetError(f"width is {width}, but must be a multiple of {size * shared}: {shared} heads share keys")
        config.num_key_value_heads = width // size // shared


def _head_size(config: Any) -> int:
    return int(config.hidden_size // config.num_attention_heads)


def _check_words(entry: TextModel, options: Options) -> None:
    if "decode" in options.flags and not entry.generates:
        able = ", ".join(name for name, other in CATALOGUE.items() if other.generates)
        raise TargetError(f"{options.target} is an encoder and has no decoding step. Models with one: {able}")
    if {"decode", "train"} <= options.flags:
        raise TargetError("decode and train are given together, but a decoding step cannot be trained: leave one out")


def _check_length(config: Any, options: Options) -> None:
    """Refuse a text longer than the model's positions. T5 has no such limit."""
    most = getattr(config, "max_position_embeddings", None)
    new = 1 if "decode" in options.flags else 0
    if most is not None and options.number("length") + new > most:
        raise TargetError(
            f"length is {options.number('length')}, but must be at most {most - new}: "
            f"{options.target} has {most} positions{', one of them for the new token' if new else ''}"
        )
