"""Models of other libraries: shapes, seeds, agreement with float64, options, figures, and missing libraries."""

from __future__ import annotations

import copy
import functools
import pickle
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from torchwise.errors import TargetError, WorkloadError
from torchwise.workload import Workload
from torchwise.workload.identity import identity
from torchwise.workload.pytree import tensors
from torchwise.workload.roofline import count_work
from torchwise.workload.step_state import loss_of
from torchwise.workload.target import load as load_target
from torchwise_models import libraries
from torchwise_models.libraries import diffusion, text
from torchwise_models.libraries.options import parse
from torchwise_models.libraries.weights import calibrate, make_seeded

TEXT = "layers=2,width=128,vocabulary=50,length=12"
SHARED = "layers=2,width=512,vocabulary=50,length=12"  # eight heads share a key

OUTPUTS = {
    f"hf:bert-base-uncased@batch=2,{TEXT}": [(2, 12, 128), (2, 128)],
    f"hf:distilbert-base-uncased@{TEXT}": [(1, 12, 128)],
    f"hf:t5-base@{TEXT}": [(1, 12, 128)],
    f"hf:gpt2@batch=2,{TEXT}": [(2, 12, 50)] + [(2, 2, 12, 64)] * 4,
    f"hf:gpt2@decode,batch=2,{TEXT}": [(2, 1, 50)] + [(2, 2, 13, 64)] * 4,
    f"hf:tinyllama-1.1b@{SHARED}": [(1, 12, 50)] + [(1, 1, 12, 64)] * 4,
    f"hf:tinyllama-1.1b@decode,{SHARED}": [(1, 1, 50)] + [(1, 1, 13, 64)] * 4,
    "diffusers:unet@width=32,layers=1,side=8,length=5": [(1, 4, 8, 8)],
    "diffusers:vae@width=32,layers=1,side=4": [(1, 3, 32, 32)],
    "diffusers:dit@width=72,layers=2,side=8,batch=2": [(2, 8, 8, 8)],
}
TARGETS = list(OUTPUTS)
SMALL = TARGETS[0]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Products this small are done sooner by one thread than shared out, on a busy machine a hundred times sooner."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def load(target: str, **keywords: object) -> Workload:
    scheme, _, name = target.partition(":")
    if scheme in ("hf", "diffusers"):
        library = {"hf": "transformers"}.get(scheme, scheme)
        pytest.importorskip(library, reason=f"{target} needs {library}: scripts/setup")
    return getattr(libraries, f"load_{scheme}")(name, **keywords)


@functools.cache
def load_workload(target: str, seed: int = 3) -> Workload:
    return load(target, seed=seed)


def run(workload: Workload) -> list[torch.Tensor]:
    with torch.no_grad():
        return tensors(workload.call(*workload.examples[0].args))


def numbers(workload: Workload) -> list[torch.Tensor]:
    drawn = [t for t in tensors(workload.examples[0].args) if t.numel() > 2]  # two time steps may well be equal
    return [*workload.call.parameters(), *drawn]


def double(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def assert_near(outputs: list[torch.Tensor], references: list[torch.Tensor], most: float = 1e-5) -> None:
    for out, reference in zip(outputs, references, strict=True):
        assert reference.dtype is torch.float64
        assert 0 < (out - reference).abs().max() < most * reference.abs().max()


@pytest.mark.parametrize("target", TARGETS)
def test_it_runs_with_the_stated_shapes_and_a_living_signal(target: str) -> None:
    workload = load_workload(target)
    outputs = run(workload)
    assert [tuple(out.shape) for out in outputs] == OUTPUTS[target]
    assert all(out.dtype is torch.float32 and torch.isfinite(out).all() for out in outputs)
    assert all(out.std() > 0.05 for out in outputs), "the signal has died on its way"
    assert workload.name == target
    assert workload.roofline is not None
    assert workload.roofline.flops > 0
    assert not any(part.training for part in workload.call.modules())


@pytest.mark.parametrize("target", TARGETS)
def test_the_seed_decides_every_number(target: str) -> None:
    first, again, other = load_workload(target), load(target, seed=3), load_workload(target, 4)
    assert all(torch.equal(a, b) for a, b in zip(numbers(first), numbers(again), strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(numbers(first), numbers(other), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(run(first), run(again), strict=True))


@pytest.mark.parametrize("target", TARGETS)
def test_reseed_draws_other_inputs_of_the_same_shape(target: str) -> None:
    workload = load_workload(target)
    assert workload.reseed is not None
    original = tensors(workload.examples[0].args)
    for seed, equal in ((3, True), (9, False)):
        drawn = tensors(workload.reseed(seed)[0].args)
        assert [t.shape for t in drawn] == [t.shape for t in original]
        assert all(torch.equal(a, b) is equal for a, b in zip(drawn, original, strict=True))


@pytest.mark.parametrize("target", TARGETS)
def test_float32_agrees_with_float64_however_that_is_made(target: str) -> None:
    workload = load_workload(target)
    assert_near(run(workload), run(load(target, seed=3, dtype=torch.float64)))
    raised = Workload(copy.deepcopy(workload.call).double(), (workload.examples[0].map_tensors(double),))
    assert_near(run(workload), run(raised))


@pytest.mark.parametrize("target", TARGETS)
def test_every_parameter_is_alive_and_has_a_gradient(target: str) -> None:
    call = copy.deepcopy(load_workload(target).call)
    loss = loss_of(call(*load_workload(target).examples[0].args))
    assert loss is not None
    loss.backward()
    for name, parameter in call.named_parameters():
        assert parameter.unique().numel() > 1, f"{name} is constant, which hides mistakes"
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.abs().max() > 0, name


@pytest.mark.parametrize("target", TARGETS)
def test_it_survives_the_way_to_another_process(target: str) -> None:
    there: Workload = pickle.loads(pickle.dumps(load_workload(target)))
    assert all(torch.equal(a, b) for a, b in zip(run(there), run(load_workload(target)), strict=True))


@pytest.mark.parametrize("target", [TARGETS[4], TARGETS[-1]])
def test_the_identity_is_that_of_the_model_and_not_of_its_numbers(target: str) -> None:
    ours = identity(load_workload(target), "inference")
    assert identity(load_workload(target, 4), "inference") == ours
    assert identity(pickle.loads(pickle.dumps(load_workload(target))), "inference") == ours
    assert identity(load(target.replace("layers=2", "layers=3")), "inference") != ours


def test_the_global_generator_is_neither_read_nor_moved() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    load(SMALL)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(("model", "options"), [("gpt2", TEXT), ("tinyllama-1.1b", SHARED)])
def test_a_decoding_step_continues_a_prefill(model: str, options: str) -> None:
    prefill = load(f"hf:{model}@{options}", dtype=torch.float64)
    step = load(f"hf:{model}@decode,{options}", dtype=torch.float64)
    (ids,) = prefill.examples[0].args
    with torch.no_grad():
        logits, whole = prefill.call(ids)
        _, past = prefill.call(ids[:, :-1])
        kept = [t.clone() for t in tensors(past)]
        new_logits, longer = step.call(ids[:, -1:], past)
    torch.testing.assert_close(new_logits, logits[:, -1:])
    torch.testing.assert_close(longer, whole)
    assert all(torch.equal(a, b) for a, b in zip(tensors(past), kept, strict=True)), "the past was written to"


def test_the_work_of_gpt2_is_what_one_counts_by_hand() -> None:
    workload = load_workload(f"hf:gpt2@batch=2,{TEXT}")
    batch, length, width, layers, vocabulary = 2, 12, 128, 2, 50
    products = layers * 12 * width**2 + width * vocabulary
    attention = layers * 4 * length * width
    assert workload.roofline is not None
    assert workload.roofline.flops == batch * length * (2 * products + attention)
    weights = products + layers * 13 * width + 2 * width  # positions are looked up, tokens are also the last layer
    activations = batch * length * (vocabulary + layers * 2 * width)
    assert workload.roofline.bytes == 4 * (weights + activations) + 8 * batch * length


def test_a_model_that_reads_values_has_no_count() -> None:
    class Reads(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2 if x.sum().item() > 0 else x

    assert count_work(Reads(), (torch.ones(2),)) is None
    assert count_work(nn.Linear(3, 4, bias=False), (torch.ones(2, 3),)).flops == 2 * 2 * 3 * 4


FIGURES = {
    "hf:bert-base-uncased": 109_482_240,
    "hf:bert-large-uncased": 335_141_888,
    "hf:distilbert-base-uncased": 66_362_880,
    "hf:t5-small": 35_330_816,
    "hf:t5-base": 109_628_544,
    "hf:t5-large": 334_939_648,
    "hf:gpt2": 124_439_808,
    "hf:gpt2-medium": 354_823_168,
    "hf:gpt2-large": 774_030_080,
    "hf:gpt2-xl": 1_557_611_200,
    "hf:tinyllama-1.1b": 1_100_048_384,
    "diffusers:unet": 859_520_964,
    "diffusers:vae": 49_490_199,
    "diffusers:dit": 749_826_464,  # 675 million in the paper: here each block has its own embedding
}


@pytest.mark.parametrize("target", FIGURES)
def test_the_published_models_have_their_published_number_of_parameters(target: str) -> None:
    scheme, _, name = target.partition(":")
    with torch.device("meta"):
        if scheme == "hf":
            transformers = pytest.importorskip("transformers")
            entry, options = text.CATALOGUE[name], parse(target, "", numbers=text.NUMBERS, flags=())
            model = text._make(transformers, entry, text._config(transformers, entry, options), options)
        else:
            network = diffusion.NETWORKS[name]
            options = parse(target, "", numbers=network.numbers, flags=())
            model = network.make(pytest.importorskip("diffusers"), options)
    assert sum(parameter.numel() for parameter in model.parameters()) == FIGURES[target]


def test_a_narrower_model_keeps_its_heads_and_its_proportions() -> None:
    for target, heads, inner in ((SMALL, 2, 512), (f"hf:tinyllama-1.1b@{SHARED}", 8, 1408)):
        config = load_workload(target).call.model.config
        assert (config.num_attention_heads, config.intermediate_size) == (heads, inner)


def test_the_target_names_the_precision_and_else_the_caller_does() -> None:
    target = f"hf:gpt2@decode,dtype=bfloat16,{TEXT}"
    assert {t.dtype for t in run(load(target, dtype=torch.float64))} == {torch.bfloat16}
    assert {t.dtype for t in run(load(f"hf:t5-base@{TEXT}", dtype=torch.bfloat16))} == {torch.bfloat16}
    with pytest.raises(WorkloadError, match=r"dtype is torch.int8, but must be a floating-point type"):
        load(SMALL, dtype=torch.int8)


def test_channels_last_lays_out_inputs_and_weights() -> None:
    plain, last = (load(f"diffusers:vae@width=32,layers=1,side=4{word}") for word in ("", ",channels_last"))
    (latents,) = last.examples[0].args
    assert latents.is_contiguous(memory_format=torch.channels_last)
    assert not latents.is_contiguous()
    assert last.call.decoder.conv_in.weight.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(latents, plain.examples[0].args[0])
    torch.testing.assert_close(run(last), run(plain))


def test_train_leaves_dropout_on_and_generates_nothing() -> None:
    workload = load(f"hf:gpt2@train,{TEXT}")
    assert all(part.training for part in workload.call.modules())
    (logits,) = run(workload)
    assert logits.shape == (1, 12, 50)
    assert not torch.equal(logits, run(workload)[0])


def test_parts_that_start_as_nothing_are_woken() -> None:
    def make() -> nn.Module:
        model = nn.Sequential(nn.Linear(40, 40), nn.LayerNorm(40), nn.BatchNorm1d(40))
        nn.init.zeros_(model[2].weight)
        nn.init.constant_(model[1].weight, 1e-6)
        model.token = nn.Parameter(torch.zeros(1, 40))
        nn.init.zeros_(model[0].bias)
        return model

    model = make_seeded(make, 0)
    for gain in (model[1].weight, model[2].weight):
        assert 0.8 < gain.mean() < 1.2
        assert 0.05 < gain.std() < 0.2
    for offset in (model[0].bias, model.token):
        assert 0.01 < offset.std() < 0.04
    assert not model.training


def test_normalisation_is_calibrated_to_what_reaches_it() -> None:
    norm = nn.BatchNorm1d(6)
    model = nn.Sequential(nn.Linear(5, 6), norm).eval()
    x = torch.randn(64, 5, generator=torch.Generator().manual_seed(0))
    calibrate(model, (x,))
    with torch.no_grad():
        torch.testing.assert_close(norm.running_mean, model[0](x).mean(0))
        torch.testing.assert_close(model(x).std(0), torch.ones(6), rtol=1e-3, atol=0)
    assert (norm.momentum, norm.training) == (0.1, False)


class Residual(nn.Module):
    """A stand-in for a library's classifier: a convolution, and a branch whose last gain starts at zero."""

    def __init__(self, side: int | None = None) -> None:
        super().__init__()
        self.side = side
        self.stem, self.branch, self.norm = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)
        nn.init.zeros_(self.norm.weight)
        self.head = nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        return self.head((x + self.norm(self.branch(x))).mean((2, 3)))


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, object]]]:
    """Put stand-ins for timm and torchvision in place, with the interfaces that are used. List the requests."""
    asked: list[tuple[str, dict[str, object]]] = []

    def make(name: str, **keywords: object) -> nn.Module:
        asked.append((name, keywords))
        return Residual()

    timm, models = types.ModuleType("timm"), types.ModuleType("torchvision.models")
    timm.list_models = lambda: ["convnet", "patches"]
    timm.get_pretrained_cfg = lambda name: types.SimpleNamespace(
        input_size=(3, 20, 20), fixed_input_size=name == "patches"
    )
    timm.create_model = models.get_model = make
    models.list_models = lambda module: ["convnet", "vit_b_16", "inception_v3"] if module is models else []
    monkeypatch.setitem(sys.modules, "timm", timm)
    monkeypatch.setitem(sys.modules, "torchvision.models", models)
    return asked


@pytest.mark.parametrize(
    ("target", "side", "asked"),
    [
        ("timm:convnet", 20, ("convnet", {"pretrained": False})),
        ("timm:convnet.of_someone@image=24", 24, ("convnet", {"pretrained": False})),
        ("timm:patches", 20, ("patches", {"pretrained": False})),
        ("timm:patches@image=24", 24, ("patches", {"pretrained": False, "img_size": 24})),
        ("torchvision:convnet@batch=1", 224, ("convnet", {"weights": None})),
        ("torchvision:convnet@image=32", 32, ("convnet", {"weights": None})),
        ("torchvision:vit_b_16@image=32", 32, ("vit_b_16", {"weights": None, "image_size": 32})),
        ("torchvision:inception_v3", 299, ("inception_v3", {"weights": None})),
    ],
)
def test_classifiers_are_made_without_weights_and_for_their_images(
    stand_ins: list[tuple[str, dict[str, object]]], target: str, side: int, asked: tuple[str, dict[str, object]]
) -> None:
    workload = load(target)
    assert stand_ins == [asked]
    assert workload.examples[0].args[0].shape == (1, 3, side, side)
    (logits,) = run(workload)
    assert logits.shape == (1, 10)
    norm = workload.call.norm
    assert 0.7 < norm.weight.mean() < 1.3, "the branch is dead"
    assert norm.running_mean.abs().min() > 0


def test_a_classifier_takes_the_layout_and_mode_that_are_asked_for(
    stand_ins: list[tuple[str, dict[str, object]]],
) -> None:
    workload = load("timm:convnet@batch=32,dtype=bfloat16,channels_last,train")
    (images,) = workload.examples[0].args
    assert (tuple(images.shape), images.dtype) == ((32, 3, 20, 20), torch.bfloat16)
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert workload.call.stem.weight.is_contiguous(memory_format=torch.channels_last)
    assert workload.call.training
    with pytest.raises(TargetError, match="timm has no model 'convnte'; did you mean convnet"):
        load("timm:convnte")
    with pytest.raises(TargetError, match="torchvision has no model 'resnet'; there are convnet, vit_b_16"):
        load("torchvision:resnet")


@pytest.mark.models
@pytest.mark.parametrize(
    "target",
    [
        "timm:resnet18@image=64",
        "timm:vit_tiny_patch16_224@image=64",
        "timm:convnext_atto.d2_in1k@image=64",
        "torchvision:resnet18@image=64",
        "torchvision:vit_b_16@image=32",
    ],
)
def test_real_classifiers_agree_with_float64(target: str) -> None:
    try:
        workload = load(target)
    except TargetError as error:
        pytest.skip(f"NOT TESTED: {error}")
    outputs = run(workload)
    assert [tuple(out.shape) for out in outputs] == [(1, 1000)]
    assert outputs[0].std() > 0.05
    raised = Workload(copy.deepcopy(workload.call).double(), (workload.examples[0].map_tensors(double),))
    assert_near(outputs, run(raised))


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("hf:gtp2", "hf has no model 'gtp2'; did you mean gpt2"),
        ("hf:google-t5/t5-base", "did you mean .*t5-base"),
        ("hf:zzz", "hf has no model 'zzz'; there are bert-base-uncased"),
        ("hf:gpt2@lenght=4", "hf:gpt2 has no option 'lenght'; did you mean length"),
        ("hf:gpt2@channels_last", "hf:gpt2 has no option 'channels_last'; there are batch, .*dtype"),
        ("hf:gpt2@batch=0", "batch is '0', but must be a whole number of at least 1"),
        ("hf:gpt2@batch=-3", "batch is '-3', but must be"),
        ("hf:gpt2@batch=²", "batch is '²', but must be"),
        ("hf:gpt2@batch=", "batch is '', but must be"),
        ("hf:gpt2@batch", "option batch has no value, but must have one, such as batch=1"),
        ("hf:gpt2@batch=1,batch=1", "option batch of hf:gpt2 is given twice, but must be given once"),
        ("hf:gpt2@decode=1", "option decode has the value '1', but takes no value: leave out =1"),
        ("hf:gpt2@dtype=bf16", "dtype is 'bf16', but must be one of float32, float64, bfloat16, float16"),
        ("hf:gpt2@dtype", "dtype is None, but must be one of"),
        ("hf:t5-base@decode", "hf:t5-base is an encoder and has no decoding step. Models with one: gpt2, "),
        ("hf:gpt2@decode,train", "decode and train are given together"),
        ("hf:gpt2@length=1025", "length is 1025, but must be at most 1024: hf:gpt2 has 1024 positions"),
        ("hf:gpt2@decode,length=1024", "at most 1023: .*one of them for the new token"),
        ("hf:bert-base-uncased@length=513", "length is 513, but must be at most 512"),
        ("hf:gpt2@width=100", "width is 100, but must be a multiple of 64, the size of a head"),
        ("hf:tinyllama-1.1b@width=128", "width is 128, but must be a multiple of 512: 8 heads share keys"),
        ("diffusers:unett", "diffusers has no model 'unett'; did you mean unet"),
        ("diffusers:unet@side=12", "side is 12, but must be a multiple of 8"),
        ("diffusers:dit@width=64", "width is 64, but must be a multiple of 72"),
        ("diffusers:dit@channels_last", "diffusers:dit has no option 'channels_last'"),
    ],
)
def test_a_wrong_target_is_answered_with_the_value_the_rule_and_the_way_out(target: str, message: str) -> None:
    with pytest.raises(TargetError, match=message):
        load(target)


@pytest.mark.parametrize(
    ("target", "library"),
    [
        ("hf:gpt2", "transformers"),
        ("diffusers:unet", "diffusers"),
        ("timm:resnet50", "timm"),
        ("torchvision:resnet50", "torchvision.models"),
    ],
)
def test_a_missing_library_is_named_with_the_extra(monkeypatch: pytest.MonkeyPatch, target: str, library: str) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    scheme, _, name = target.partition(":")
    with pytest.raises(TargetError, match=rf"{target} needs {library}, .*pip install 'timm>=1.0' torchvision "):
        getattr(libraries, f"load_{scheme}")(name)


def test_a_library_built_for_another_torch_is_told_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "timm.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(TargetError, match=r"but cannot be imported \(RuntimeError: operator torchvision::nms"):
        libraries.load_timm("resnet50")


def test_each_library_is_a_target_scheme() -> None:
    pytest.importorskip("transformers")
    workload = load_target(f"hf:gpt2@{TEXT}", seed=3)
    assert all(torch.equal(a, b) for a, b in zip(run(workload), run(load_workload(f"hf:gpt2@{TEXT}")), strict=True))
    for scheme in ("timm", "torchvision", "diffusers"):
        with pytest.raises(TargetError, match=rf"{scheme}:nothing has no option 'zzz'|{scheme} has no model 'nothing'"):
            load_target(f"{scheme}:nothing@zzz")
