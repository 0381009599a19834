"""Schemes `timm` and `torchvision`: image classifiers by the names in their libraries.

Inputs are normalised images of shape (batch, channels, image, image), outputs are logits of shape (batch, classes).
Sources: https://huggingface.co/docs/timm (`create_model`, `list_models`) and
https://docs.pytorch.org/vision/stable/models.html (`get_model`, `list_models`).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torchwise.errors import TargetError
from torchwise_models.libraries.build import Normal, build
from torchwise_models.libraries.options import Options, import_library, parse, suggest_names

if TYPE_CHECKING:
    import torch

    from torchwise.workload import Workload

NUMBERS: Mapping[str, int | None] = {"batch": 1, "image": None}
FLAGS = ("channels_last", "train")
SIDES = {"inception_v3": 299}
"""Image sides in torchvision that are not 224. Its registry only gives them with the pretrained weights."""


def load_timm(name: str, *, device: str = "cpu", dtype: torch.dtype | None = None, seed: int = 0) -> Workload:
    """Build `name`, which is `MODEL[@OPTIONS]` with any model that `timm.list_models()` names.

    Args:
        name: such as "resnet50@batch=32,dtype=bfloat16,channels_last". `image` is the side of the images in pixels, by
            default the model's own.
        device: device of weights and inputs, which are drawn on the CPU.
        dtype: dtype if the options name none, by default float32.
        seed: seed of weights and inputs.

    Raises:
        TargetError: there is no such model or option, or timm cannot be imported.
    """
    model, _, text = name.partition("@")
    options = parse(f"timm:{model}", text, numbers=NUMBERS, flags=FLAGS)
    timm = import_library("timm", options.target)
    _check_name(
        options, model.partition(".")[0], timm.list_models()
    )  # the part after the dot names weights, which are not used
    config = timm.get_pretrained_cfg(model.partition(".")[0])
    channels, side, _ = config.input_size
    image = options.numbers["image"] or side
    # A model with a fixed number of image patches is built for that number.
    fitted = {"img_size": image} if config.fixed_input_size and image != side else {}
    return build(
        f"timm:{name}",
        functools.partial(timm.create_model, model.partition(".")[0], pretrained=False, **fitted),
        lambda batch: (Normal((batch, channels, image, image)),),
        options,
        device=device,
        dtype=dtype,
        seed=seed,
    )


def load_torchvision(name: str, *, device: str = "cpu", dtype: torch.dtype | None = None, seed: int = 0) -> Workload:
    """Build `name`, which is `MODEL[@OPTIONS]` with any classifier of `torchvision.models`.

    The arguments and errors are those of `load_timm`.
    """
    model, _, text = name.partition("@")
    options = parse(f"torchvision:{model}", text, numbers=NUMBERS, flags=FLAGS)
    models = import_library("torchvision.models", options.target)
    _check_name(options, model, models.list_models(module=models))
    side = SIDES.get(model, 224)
    image = options.numbers["image"] or side
    fitted = {"image_size": image} if model.startswith("vit_") and image != side else {}
    return build(
        f"torchvision:{name}",
        functools.partial(models.get_model, model, weights=None, **fitted),
        lambda batch: (Normal((batch, 3, image, image)),),
        options,
        device=device,
        dtype=dtype,
        seed=seed,
    )


def _check_name(options: Options, model: str, known: Any) -> None:
    if model not in known:
        scheme = options.target.partition(":")[0]
        raise TargetError(f"{scheme} has no model {model!r}{suggest_names(model, list(known))}")
