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


def random(look: BreakSite) -> CodeFix | None:
    """Python's and NumPy's random numbers."""
    if not look.says(r"Random\.|random\.random|numpy\.random|module: random") and not look.reads(
        r"(np|numpy)\.random\.|\brandom\.(random|randint|uniform|gauss|choice|shuffle)\("
    ):
        return None
    call = look.find_call(r"random|uniform|gauss|randint|choice|shuffle|rand|normal") or "the random number"
    return CodeFix(
        "random",
        f"`{call}` is drawn outside of PyTorch. Draw it there: `torch.rand((), device=x.device)`, or `torch.randn`, "
        "`torch.randint`; it follows `torch.manual_seed`. Or draw it in the caller and hand it over as a tensor.",
    )


def item(look: BreakSite) -> CodeFix | None:
    """`.item()`, `int(tensor)`, `float(tensor)`."""
    stores = look.reads(r"\.(add|append|update|setdefault|extend)\(|^[\w.]+\[[^\]]*\]\s*[-+*/]?=[^=]")
    stores_number = stores and look.reads(
        r"\.item\(\)|\b(float|int)\("
    )  # 2.11 complains of the `add`, not of the number
    if not stores_number and not look.says(r"Tensor\.item\(\)|_local_scalar_dense"):
        return None
    where = (
        "Return the tensor, and store its value in the caller, once the compiled call is done."
        if stores
        else "Keep it a tensor; arithmetic with it stays in the graph."
    )
    text = f"{look.quoted} makes a Python number of a tensor, and waits for the device. {where}"
    if stores:  # with the setting, the stored value would be a symbol, which breaks in its turn
        return CodeFix("item", text)
    return CodeFix(
        "item",
        f"{text} A number that is a size or a loop count is better handed in by the caller.",
        f"{look.find_setting('capture_scalar_outputs')} = True",
        "Numbers read from tensors become symbols in the graph. What then depends on them, such as `if`, fails or "
        "breaks there; the read itself still waits for the device.",
        line=keep_tensors(look.statement),
    )


def tolist(look: BreakSite) -> CodeFix | None:
    """`.tolist()`."""
    if not look.says("tolist|to_list"):
        return None
    return CodeFix(
        "tolist",
        f"{look.quoted} makes Python numbers of a tensor. Index the tensor itself (`x[0]`, `x.unbind(0)`), and keep "
        "what follows in tensors; or read the list in the caller.",
    )


def numpy(look: BreakSite) -> CodeFix | None:
    """NumPy functions that PyTorch does not have."""
    if not look.says("numpy function|torch\\._numpy|numpy\\.ndarray"):
        return None
    call = look.find_call(r"^(np|numpy)\.")
    name = call.partition("(")[0].rpartition(".")[2]
    instead = _NUMPY.get(name, "PyTorch's function of that kind")
    return CodeFix(
        "numpy",
        f"PyTorch has no `{call.partition('(')[0] or 'such function of NumPy'}`. Write it with tensors: {instead}. Or "
        "make it one operator of the graph: `@torch.library.custom_op` with `register_fake` around a function that "
        "calls NumPy; it still runs on the host.",
    )
