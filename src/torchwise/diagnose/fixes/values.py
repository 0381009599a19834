"""Fixes for tensors that become Python numbers, lists and NumPy arrays, and for random numbers."""

from __future__ import annotations

from torchwise.diagnose.fixes.break_site import BreakSite
from torchwise.diagnose.fixes.tensors import keep_tensors
from torchwise.records.compile_events import CodeFix

_NUMPY = {
    "interp": "`torch.searchsorted(knots, x)` and `torch.lerp` between the two knots",
    "random": "`torch.rand`",
    "percentile": "`torch.quantile`",
    "histogram": "`torch.histc`",
    "convolve": "`torch.nn.functional.conv1d`",
}


def random(site: BreakSite) -> CodeFix | None:
    """Python's and NumPy's random numbers."""
    if not site.says(r"Random\.|random\.random|numpy\.random|module: random") and not site.reads(
        r"(np|numpy)\.random\.|\brandom\.(random|randint|uniform|gauss|choice|shuffle)\("
    ):
        return None
    call = site.find_call(r"random|uniform|gauss|randint|choice|shuffle|rand|normal") or "the random number"
    return CodeFix(
        "random",
        f"`{call}` is drawn outside of PyTorch. Draw it with PyTorch: `torch.rand((), device=x.device)`, `torch.randn` "
        "or `torch.randint`, which follow `torch.manual_seed`. Or draw it in the caller and pass it in as a tensor.",
    )


def item(site: BreakSite) -> CodeFix | None:
    """`.item()`, `int(tensor)`, `float(tensor)`."""
    stores = site.reads(r"\.(add|append|update|setdefault|extend)\(|^[\w.]+\[[^\]]*\]\s*[-+*/]?=[^=]")
    stores_number = stores and site.reads(
        r"\.item\(\)|\b(float|int)\("
    )  # 2.11 complains of the `add`, not of the number
    if not stores_number and not site.says(r"Tensor\.item\(\)|_local_scalar_dense"):
        return None
    where = (
        "Return the tensor, and store its value in the caller after the compiled call."
        if stores
        else "Keep it a tensor: arithmetic with it stays in the graph."
    )
    text = f"{site.quoted} turns a tensor into a Python number, and waits for the device. {where}"
    if stores:  # with the setting, the stored value would be a symbol, which breaks the graph again
        return CodeFix("item", text)
    return CodeFix(
        "item",
        f"{text} If the number is a size or a loop count, pass it in from the caller.",
        f"{site.find_setting('capture_scalar_outputs')} = True",
        "Numbers read from tensors become symbols in the graph. Code that depends on them, such as `if`, fails or "
        "breaks there. The read itself still waits for the device.",
        line=keep_tensors(site.statement),
    )


def tolist(site: BreakSite) -> CodeFix | None:
    """`.tolist()`."""
    if not site.says("tolist|to_list"):
        return None
    return CodeFix(
        "tolist",
        f"{site.quoted} turns a tensor into Python numbers. Index the tensor itself (`x[0]`, `x.unbind(0)`), and keep "
        "the following code in tensors. Or read the list in the caller.",
    )


def numpy(site: BreakSite) -> CodeFix | None:
    """NumPy functions that PyTorch does not have."""
    if not site.says("numpy function|torch\\._numpy|numpy\\.ndarray"):
        return None
    call = site.find_call(r"^(np|numpy)\.")
    name = call.partition("(")[0].rpartition(".")[2]
    instead = _NUMPY.get(name, "PyTorch's function of that kind")
    return CodeFix(
        "numpy",
        f"PyTorch has no `{call.partition('(')[0] or 'such function of NumPy'}`. Write it with tensors: {instead}. Or "
        "make it one operator of the graph: decorate a function that calls NumPy with `@torch.library.custom_op`, and "
        "add `register_fake`. It still runs on the host.",
    )
