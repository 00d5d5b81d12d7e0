"""Rules for operators that must also work inside torch.func: derivatives and vmap.

`torch.library.register_autograd` refuses to run inside torch.func transforms, and there a public
`torch.autograd.Function` costs four times as much, half a millisecond a call. This file does what
PyTorch's own operators do: the rule is a kernel under the dispatcher's Autograd key, which hands
the call on to whatever lies below, be it the next transform or the CPU. It leans on private names
of torch, all of them here and all used by torch.library itself or by torch.func.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import _SingleLevelFunction
from torch.library import register_fake, register_vmap

Setup = Callable[[Any, tuple[Any, ...]], None]
Rule = Callable[..., tuple[Any, ...]]


def register(
    library: Any,
    name: str,
    kernel: Callable[..., Any],
    fake: Callable[..., Any],
    setup: Setup,
    rule: Rule,
    members: Callable[[Any], Any] | None = None,
) -> None:
    """Give a defined operator everything: a CPU kernel, shapes, a derivative and a vmap rule.

    `members` makes the vmap rule from the operator; `over_members` if None.
    """
    operator = getattr(getattr(torch.ops, library.ns), name).default
    library.impl(name, kernel, "CPU")
    register_fake(f"{library.ns}::{name}", fake)
    register_vmap(f"{library.ns}::{name}", (members or over_members)(operator))
    differentiable(library, name, setup, rule)


def differentiable(library: Any, name: str, setup: Setup, rule: Rule) -> None:
    """Give an operator a derivative.

    Args:
        library: where the operator is defined.
        name: of the operator, without namespace.
        setup: (ctx, inputs) -> None saves what the rule needs.
        rule: (ctx, *cotangents) -> one gradient or None per input, made of differentiable
            operators; `ctx.needs_input_grad` is aligned with the inputs, and a cotangent of None
            stands for zero.
    """
    operator = getattr(getattr(torch.ops, library.ns), name).default
    functorch = torch._C._functorch

    def forward(ctx: Any, enabled: bool, keys: Any, *inputs: Any) -> Any:
        setup(ctx, inputs)
        ctx.tensors = [isinstance(value, Tensor) for value in inputs]
        ctx.set_materialize_grads(False)
        below = keys & torch._C._after_autograd_keyset
        # A Function switches gradients off; a transform below this one needs them as they were.
        with torch._C._AutoDispatchBelowAutograd(), torch.set_grad_enabled(enabled):
            return operator.redispatch(below, *inputs)

    def backward(ctx: Any, *cotangents: Any) -> Any:
        declared = ctx.needs_input_grad
        ctx.needs_input_grad = _wanted(ctx, declared[2:])
        try:
            return None, None, *rule(ctx, *cotangents)
        finally:
            ctx.needs_input_grad = declared

    members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    function: Any = type(f"{library.ns}_{name}", (_SingleLevelFunction,), members)

    def kernel(keys: Any, *inputs: Any) -> Any:
        if not (torch.is_grad_enabled() and torch._C._any_requires_grad(*inputs)):
            with torch._C._AutoDispatchBelowAutograd():
                return operator.redispatch(keys & torch._C._after_autograd_keyset, *inputs)
        before = functorch.get_single_level_autograd_function_allowed()
        functorch.set_single_level_autograd_function_allowed(True)
        try:
            return function.apply(torch.is_grad_enabled(), keys, *inputs)
        finally:
            functorch.set_single_level_autograd_function_allowed(before)

    library.impl(name, kernel, "Autograd", with_keyset=True)


def _wanted(ctx: Any, declared: tuple[bool, ...]) -> tuple[bool, ...]:
    """Which inputs this very backward pass asks for.

    `needs_input_grad` says which inputs depend on something that requires gradients. Forces ask for
    gradients along positions only, and those of the weights, half of the work, can be left out.
    """
    nodes = iter(ctx.next_functions)
    following = [next(nodes)[0] if tensor else None for tensor in ctx.tensors]
    return tuple(
        need and node is not None and _will_run(node)
        for need, node in zip(declared, following, strict=True)
    )


def _will_run(node: Any) -> bool:
    try:
        return bool(torch._C._will_engine_execute_node(node))
    except RuntimeError:  # a leaf whose gradient is being asked for
        return True


def over_members(operator: Any) -> Any:
    """A vmap rule: members run one after another and share what is not theirs."""

    def rule(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Any, Any]:
        results = [
            operator(
                *(
                    value.select(dim, member) if isinstance(dim, int) else value
                    for value, dim in zip(inputs, in_dims, strict=True)
                )
            )
            for member in range(info.batch_size)
        ]
        if isinstance(results[0], Tensor):
            return torch.stack(results), 0
        return tuple(map(torch.stack, zip(*results, strict=True))), (0,) * len(results[0])

    return rule
