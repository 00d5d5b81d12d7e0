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

Setup = Callable[[Any, tuple[Any, ...]], None]
Rule = Callable[..., tuple[Any, ...]]


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
        ctx.set_materialize_grads(False)
        below = keys & torch._C._after_autograd_keyset
        # A Function switches gradients off; a transform below this one needs them as they were.
        with torch._C._AutoDispatchBelowAutograd(), torch.set_grad_enabled(enabled):
            return operator.redispatch(below, *inputs)

    def backward(ctx: Any, *cotangents: Any) -> Any:
        needed = ctx.needs_input_grad
        ctx.needs_input_grad = needed[2:]
        try:
            return None, None, *rule(ctx, *cotangents)
        finally:
            ctx.needs_input_grad = needed

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
