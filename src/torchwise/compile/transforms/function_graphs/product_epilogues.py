"""Work that the kernel of products of few rows may do behind their sums: an activation, a gate, and a residual.

Each of them would be a kernel of its own otherwise, or a part of one, which takes longer to start than to run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch.fx import Node

from torchwise.compile.few_rows.operator import ACTIVATIONS
from torchwise.compile.transforms.function_graphs.nodes import argument, name_of, same_sizes, value_of, writes

VIEWS = ("view", "reshape", "flatten", "unflatten", "unsqueeze", "squeeze", "contiguous")
"""Functions whose result has the numbers of their input, in the same order."""
CASTS = ("to", "float", "half", "bfloat16", "type")


@dataclass(frozen=True, slots=True)
class Epilogue:
    """The work behind one product, or two.

    Attributes:
        order: the places of the products, that with the activation first.
        activation: its name, or "".
        added: a node that is added last, or None.
        nodes: all that is computed in the kernel, the products included, in an order in which each is behind its
            inputs. The last is the result.
    """

    order: tuple[int, ...]
    activation: str
    added: Node | None
    nodes: tuple[Node, ...]


def find_epilogue(products: Sequence[Node], is_ready: Callable[[Node, Node], bool]) -> Epilogue | None:
    """Return the work that can be done behind products of the same rows, or None.

    Args:
        products: those of one kernel, in their order.
        is_ready: whether a node's value is known where the first product is, and still the same where another node
            reads it.
    """
    if len(products) == 1:
        chain = follow(products[0])
        active = _find_activation(chain[-1])
        # It ends there, as others may name the activation where they read its views.
        found = None if active is None else Epilogue((0,), _name_activation(active), None, (*chain, active))
        nodes = chain if active is None else [*chain, *follow(active)]
    else:
        found = _find_gate(products)
        if found is None:
            return None
        nodes = [*found.nodes]
    total = find_only_user(nodes[-1])
    added = None if total is None else _find_added(nodes[-1], total)
    if added is None or total is None or not is_ready(added, total):
        return found
    order, activation = ((0,), "") if found is None else (found.order, found.activation)
    return Epilogue(order, activation, added, (*nodes, total))


def _find_gate(products: Sequence[Node]) -> Epilogue | None:
    """Return the gate that two products are: the activation of one of them, times the other."""
    if len(products) != 2:
        return None
    for order in ((0, 1), (1, 0)):
        one, other = (products[place] for place in order)
        chain, other_chain = follow(one), follow(other)
        active = _find_activation(chain[-1])
        if active is None:
            continue
        active_chain = follow(active)
        result = find_only_user(active_chain[-1])
        if result is None or result is not find_only_user(other_chain[-1]) or name_of(result) != "mul":
            continue
        if _are_alike(active_chain[-1], other_chain[-1], result) and _is_plain(result):
            nodes = (*chain, *other_chain, *active_chain, result)
            return Epilogue(order, _name_activation(active), None, nodes)
    return None


def _find_activation(node: Node) -> Node | None:
    """Return the activation that alone reads a node, if the kernel has it."""
    active = find_only_user(node)
    is_known = active is not None and _name_activation(active) in ACTIVATIONS and not writes(active)
    return active if active is not None and is_known and _are_alike(node, active) else None


def _name_activation(node: Node) -> str:
    name = name_of(node)
    if name != "gelu":
        return name
    return {"none": "gelu", "tanh": "gelu_tanh"}.get(argument(node, 1, "approximate", "none"), "")


def _find_added(end: Node, total: Node) -> Node | None:
    """Return the other summand of a node, if both are alike."""
    if name_of(total) != "add" or not _is_plain(total):
        return None
    others = [one for one in total.args if one is not end]
    if len(others) != 1 or not isinstance(others[0], Node) or not _are_alike(end, others[0], total):
        return None
    return others[0]


def _is_plain(node: Node) -> bool:
    """Whether a function has two arguments, and does no more than its name says."""
    return len(node.args) == 2 and not node.kwargs and not writes(node)


def _are_alike(*nodes: Node) -> bool:
    """Whether the values of nodes have one size, one type and one device, and none of them has a gradient."""
    values = [value_of(node) for node in nodes]
    first = values[0]
    return first is not None and all(
        value is not None
        and (value.dtype, value.device) == (first.dtype, first.device)
        and same_sizes(value.shape, first.shape)
        and not value.requires_grad
        for value in values
    )


def follow(node: Node) -> list[Node]:
    """Return a node, and those behind it that are its only reader and have its numbers in its order, where it is."""
    found, value = [node], value_of(node)
    while (user := find_only_user(found[-1])) is not None and not writes(user):
        made, is_view = value_of(user), name_of(user) in VIEWS or name_of(user) in CASTS
        is_alike = made is not None and value is not None and (made.dtype, made.device) == (value.dtype, value.device)
        if not is_view or not is_alike:
            break
        found.append(user)
    return found


def find_only_user(node: Node) -> Node | None:
    """Return the node that reads another one, if it is the only one."""
    users = list(node.users)
    return users[0] if len(users) == 1 else None
