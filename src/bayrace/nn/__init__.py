"""Building blocks of equivariant networks, written as pure functions of tensors."""
