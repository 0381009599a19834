"""Write a program that shows the difference of a candidate on the smallest inputs: it needs torch and both targets."""

from __future__ import annotations

import inspect
import itertools
import math
import os
import textwrap
from pathlib import Path
from typing import Any

import torch

from torchwise.errors import first_line
from torchwise.plan.workload_spec import WorkloadSpec, split
from torchwise.records import Check, CheckName, Figure
from torchwise.verify.incoming import QUARTERS
from torchwise.verify.input_cases import Case
from torchwise.verify.shared_weights import WEIGHT_CHANGE
from torchwise.workload import pytree
from torchwise.workload.pair_side import is_factory
from torchwise.workload.target import find_factory
from torchwise.workload.workload import Example

SHOWN = (
    *(CheckName.VALUES, CheckName.STRUCTURE, CheckName.STRIDES, CheckName.ANSWER, CheckName.REPEATED_CALLS),
    *(CheckName.MEMORY, CheckName.BITWISE),
)
"""Checks whose failure a program can show."""
MARK = "DIFFERENT:"
"""Begins the line that the program prints."""
INLINE = 64
"""Elements of a tensor up to which its values are written into the program. Those of larger ones go to a .pt file."""


def write_repro(
    wanted: str, targets: tuple[str, str], case: Case, check: Check, spec: WorkloadSpec, *, trains: bool
) -> str:
    """Write the program, and return its file: the wanted one, or one with a number if there is such a file already.

    Return "" if nothing that the program could print shows the fault.
    """
    heads = [split(target)[0] for target in targets]
    if check.name not in SHOWN or not all(head.endswith(".py") or _is_module(head) for head in heads):
        return ""
    file = _find_free(Path(wanted))
    inputs, tensors = _write_inputs(case)
    if tensors:
        torch.save(tensors, file.with_suffix(".pt"))
    limit = 0.0 if check.name == CheckName.BITWISE else check.figures.get(Figure.LIMIT, 1e-4)
    text = _PROGRAM.format(
        about=_clean(f"{targets[1]} differs from {targets[0]}: {first_line(check.detail)}"),
        imports=_IMPORTS,
        reference=_write_side(targets[0], spec, trains=trains),
        candidate=_write_side(targets[1], spec, trains=trains),
        inputs=textwrap.indent(inputs, "    "),
        gradients=spec.mode == "training" and case.needs_gradients,
        incoming=case.incoming,
        quarters=QUARTERS,
        limit=limit,
        poisons=check.name == CheckName.MEMORY,
        mark=MARK,
        seed=spec.seed,
        change=WEIGHT_CHANGE,
    )
    with open(file, "x", encoding="utf-8") as opened:
        opened.write(text)
    return str(file)


def _find_free(wanted: Path) -> Path:
    """Return a file that does not exist, nor its tensors: what is there may be the user's own."""
    names = itertools.chain([wanted], (wanted.with_stem(f"{wanted.stem}_{number}") for number in itertools.count(2)))
    return next(file for file in names if not (os.path.lexists(file) or os.path.lexists(file.with_suffix(".pt"))))


def _is_module(head: str) -> bool:
    return all(part.isidentifier() for part in head.split("."))


def _clean(text: str) -> str:
    return text.replace("\\", "/").replace('"""', "'''")


def _write_side(target: str, spec: WorkloadSpec, *, trains: bool) -> str:
    """Return an expression that loads one side as the command did."""
    head, _, name = split(target)
    found = find_factory(target)
    module = f"load({str(Path(head).resolve())!r})" if head.endswith(".py") else f"importlib.import_module({head!r})"
    if not is_factory(found):
        return f"ready({module}.{name}, {trains})"
    offered = {"device": repr(spec.device), "dtype": "torch.float32", "seed": repr(spec.seed)}
    names = inspect.signature(found).parameters
    keywords = ", ".join(f"{key}={value}" for key, value in offered.items() if key in names)
    return f"ready(made(lambda: {module}.{name}({keywords}), {spec.seed}), {trains})"


def _write_inputs(case: Case) -> tuple[str, list[torch.Tensor]]:
    """Return statements that build the inputs, and the tensors that are too large for them."""
    lines: list[str] = []
    large: list[torch.Tensor] = []
    sets = [case.example] + ([case.redraw] if case.redraw is not None else [])
    names: list[str] = []
    for number, example in enumerate(sets):
        known: dict[int, str] = {}
        tensors = {id(tensor): tensor for tensor in example.tensors()}
        shares = _share_memory(list(tensors.values()))
        for key, tensor in tensors.items():
            known[key] = f"x{number}_{len(known)}"
            lines.append(f"{known[key]} = {_write_tensor(tensor, large, shares=shares)}")
        lines.append(f"inputs{number} = {_name_tensors(example, known)}")
        names.append(f"inputs{number}")
    lines.append(f"return [{', '.join(names)}]")
    return "\n".join(["large = torch.load(LARGE)", *lines] if large else lines), large


def _name_tensors(example: Example, known: dict[int, str]) -> str:
    args, kwargs = pytree.map_tensors(lambda t: _Name(known[id(t)]), (example.args, dict(example.kwargs)))
    return f"{args!r}, {kwargs!r}"


class _Name:
    """A name that is printed without quotes."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


def _share_memory(tensors: list[torch.Tensor]) -> bool:
    """Whether tensors lie in one memory, which copies of them would not."""
    places = [t.untyped_storage().data_ptr() for t in tensors if t.layout is torch.strided and t.numel()]
    return len(set(places)) < len(places)


def _write_tensor(tensor: torch.Tensor, large: list[torch.Tensor], *, shares: bool) -> str:
    """Return an expression of the tensor, with the very values, or add it to the large ones."""
    grad = ".requires_grad_()" if tensor.requires_grad else ""
    detached = tensor.detach()
    is_moved = tensor.layout is torch.strided and tensor.storage_offset() > 0  # such as to an odd address
    plain = detached if shares or is_moved else pytree.copy_of(detached.cpu())
    device = "" if plain.device == tensor.device else f".to({tensor.device.type!r})"
    made = None if shares or is_moved else _write_plain(plain)
    if made is None:
        large.append(plain)
        made = f"large[{len(large) - 1}]"
    return f"{made}{device}{grad}"


def _write_plain(plain: torch.Tensor) -> str | None:
    """Return an expression of a small tensor, or None if it would not give the same bits, such as those of a NaN."""
    if plain.numel() > INLINE or plain.layout is not torch.strided or plain.is_complex():
        return None
    if plain.numel() == 0:
        return f"torch.zeros({tuple(plain.shape)}, dtype={plain.dtype})"
    span = 1 + sum((n - 1) * s for n, s in zip(plain.shape, plain.stride(), strict=True))
    storage = torch.as_strided(plain, (span,), (1,))
    listed = (plain if plain.is_contiguous() else storage).tolist()
    try:
        made_again = torch.tensor(_read_again(listed), dtype=plain.dtype).flatten()
        is_same = torch.equal(made_again.view(torch.uint8), storage.contiguous().view(torch.uint8))
    except (RuntimeError, TypeError, ValueError):  # a dtype that is not made from a list
        return None
    made = f"torch.tensor({_write_values(listed)}, dtype={plain.dtype})"
    made += "" if plain.is_contiguous() else f".as_strided({tuple(plain.shape)}, {tuple(plain.stride())})"
    return made if is_same else None


def _read_again(values: Any) -> Any:
    """Return the values as a program reads them: a NaN without the bits that it carries."""
    if isinstance(values, list):
        return [_read_again(value) for value in values]
    return math.nan if values != values else values


def _write_values(values: Any) -> str:
    if isinstance(values, list):
        return f"[{', '.join(map(_write_values, values))}]"
    if isinstance(values, float) and not math.isfinite(values):
        return f'float("{values}")'
    return repr(values)


_IMPORTS = "import importlib\nimport importlib.util\nimport pathlib\nimport sys\n\nimport torch"
_PROGRAM = '''"""{about}

Found by `torchwise verify`. Run it with Python: it ends with 1 if the two differ.
"""

{imports}

LIMIT = {limit!r}
LARGE = pathlib.Path(__file__).with_suffix(".pt")


def load(path):
    """Import a file."""
    sys.path.insert(0, str(pathlib.Path(path).parent))
    spec = importlib.util.spec_from_file_location(pathlib.Path(path).stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def made(factory, seed):
    """Return the callable that a factory returns, alone or with its inputs."""
    torch.manual_seed(seed)
    found = factory()
    found = found[0] if isinstance(found, tuple) else found
    return getattr(found, "call", found)


def ready(call, trains):
    """Return a model in its mode."""
    return call.train() if trains and isinstance(call, torch.nn.Module) else call


def make_inputs():
    """Return the inputs, and others to answer next in the same memory if they matter."""
{inputs}


def leaves(value, path):
    """Yield the tensors and values of an answer with their places."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from leaves(part, f"{{path}}[{{key!r}}]")
    elif isinstance(value, (tuple, list)):
        for place, part in enumerate(value):
            yield from leaves(part, f"{{path}}[{{place}}]")
    else:
        yield path, value


def run(call):
    """Return all that a call gives and changes."""
    sets = make_inputs()
    args, kwargs = sets[0]
    found = []
    for number, (values, named) in enumerate(sets):
        if number:
            with torch.no_grad():
                for (_, mine), (_, other) in zip(leaves((args, kwargs), ""), leaves((values, named), "")):
                    if isinstance(mine, torch.Tensor):
                        mine.copy_(other)
        torch.manual_seed(0)
        try:
            with torch.set_grad_enabled({gradients}):
                output = call(*args, **kwargs)
        except Exception as error:
            found.append(("the call", f"raises {{type(error).__name__}}: {{error}}"))
            continue
        found += [(name, keep(leaf)) for name, leaf in leaves(output, "output")]
        found += [(name, keep(leaf)) for name, leaf in leaves((args, kwargs), "inputs after the call ")]
        if {gradients}:
            parts = [t for _, t in leaves(output, "") if isinstance(t, torch.Tensor) and t.requires_grad]
            wanted = [t for _, t in leaves((args, kwargs), "") if isinstance(t, torch.Tensor) and t.requires_grad]
            if parts and wanted:
                generator = torch.Generator().manual_seed({incoming})
                loss = sum(weigh(part, generator) for part in parts)
                grads = torch.autograd.grad(loss, wanted, allow_unused=True)
                found += [(f"gradient of input {{place}}", keep(g)) for place, g in enumerate(grads)]
            else:
                found.append(("gradients", f"{{len(parts)}} outputs and {{len(wanted)}} inputs have one"))
    return found


def weigh(part, generator):
    """Return an output's part of the loss: with weights of their own, unless the seed says a plain sum."""
    if {incoming} == 0:
        return part.sum().real.double()
    quarters = torch.randint(1, {quarters} + 1, part.shape, generator=generator)
    signs = 1 - 2 * torch.randint(2, part.shape, generator=generator)
    return (part * (quarters * signs / 4).to(part.device, part.dtype)).sum().real.double()


def keep(leaf):
    """Return a copy of a tensor."""
    return leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf


def differ(one, other):
    """Return the difference in words, or nothing."""
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return "" if type(one) is type(other) and (one == other or one != one) else f"{{one!r}} and {{other!r}}"
    for name in ("dtype", "shape"):
        if getattr(one, name) != getattr(other, name):
            return f"{{name}} {{getattr(one, name)}} and {{getattr(other, name)}}"
    wide = [t.to(torch.complex128 if t.is_complex() else torch.float64) for t in (one, other)]
    if not torch.equal(wide[0].isfinite(), wide[1].isfinite()):
        return f"other infinities or NaN: {{one.flatten()[:8].tolist()}} and {{other.flatten()[:8].tolist()}}"
    both = wide[0].isfinite()
    off = (wide[0] - wide[1])[both].abs()
    size = float(wide[0][both].abs().square().mean().sqrt()) if both.any() else 0.0
    error = float(off.square().mean().sqrt()) / (size or 1.0) if off.numel() else 0.0
    worst = float(off.max()) / (size or 1.0) if off.numel() else 0.0
    is_other = error > LIMIT or worst > 10 * LIMIT
    text = f"off by {{error:.3g}} (root mean square), {{worst:.3g}} at worst; {{LIMIT:.3g}} is rounding"
    if not is_other and one.stride() != other.stride():
        return f"strides {{one.stride()}} and {{other.stride()}}"
    return text if is_other else ""


def weights(model):
    """Return weights and buffers by their names in the plain model."""
    state = model.state_dict(keep_vars=True)
    return {{n.replace("_orig_mod.", ""): t for n, t in state.items() if isinstance(t, torch.Tensor)}}


def main():
    """Run both, and print each difference."""
    reference = {reference}
    candidate = {candidate}
    if isinstance(reference, torch.nn.Module) and isinstance(candidate, torch.nn.Module):
        state, mine = weights(reference), weights(candidate)
        if {{n: t.shape for n, t in state.items()}} == {{n: t.shape for n, t in mine.items()}}:
            generator = torch.Generator().manual_seed({seed})
            with torch.no_grad():  # other weights than a candidate may have kept
                for weight in reference.parameters():
                    if weight.requires_grad and weight.is_floating_point():
                        factor = 1 + {change} * torch.randn(weight.shape, generator=generator)
                        weight.mul_(factor.to(weight.device, weight.dtype))
                for name, tensor in mine.items():
                    tensor.copy_(state[name])
    right = run(reference)
    if {poisons}:
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = True
    own = run(candidate)
    found = [f"{{a}}: {{text}}" for (a, x), (b, y) in zip(right, own) if (text := differ(x, y))]
    if [name for name, _ in right] != [name for name, _ in own]:
        found.append(f"the reference gives {{[n for n, _ in right]}}, the candidate {{[n for n, _ in own]}}")
    for line in found:
        print(f"{mark} {{line}}")
    print("the two agree" if not found else "(reference first)")
    sys.exit(1 if found else 0)


main()
'''
