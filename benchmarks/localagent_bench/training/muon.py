"""Muon: momentum whose update is made orthogonal, for the matrices of a network.

After Keller Jordan's description. Matrices of one shape are updated together, which is far quicker for many
small ones than torch's own optimizers.
"""

from __future__ import annotations

from typing import Any

import torch

_A, _B, _C = 3.4445, -4.7750, 2.0315  # the quintic iteration's published coefficients
_ROUNDS = 5


class Muon:
    """Updates `matrices` from their gradients. `rate` may be changed between steps."""

    def __init__(self, matrices: list[torch.Tensor], rate: float, momentum: float = 0.95) -> None:
        self.rate = rate
        self._momentum = momentum
        self._groups: list[list[torch.Tensor]] = []
        for size in dict.fromkeys(matrix.shape for matrix in matrices):
            self._groups.append([matrix for matrix in matrices if matrix.shape == size])
        self._averages = [torch.zeros(len(group), *group[0].shape) for group in self._groups]

    def step(self) -> None:
        """One update of every matrix; each needs a gradient."""
        with torch.no_grad():
            for group, average in zip(self._groups, self._averages, strict=True):
                self._update(group, average)

    def _update(self, group: list[torch.Tensor], average: torch.Tensor) -> None:
        gradients = torch.stack([matrix.grad for matrix in group if matrix.grad is not None])
        average.lerp_(gradients, 1 - self._momentum)
        update = orthogonal(gradients.lerp(average, self._momentum))
        rows, columns = update.shape[-2:]
        for matrix, change in zip(group, update, strict=True):
            matrix.sub_(change, alpha=self.rate * max(1.0, rows / columns) ** 0.5)

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` needs to go on."""
        return {"averages": self._averages}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self._averages = state["averages"]


def orthogonal(matrices: torch.Tensor) -> torch.Tensor:
    """The nearest orthogonal matrices, roughly: all singular values near one. (count, rows, columns)."""
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(_ROUNDS):
        square = x @ x.mT
        x = _A * x + (_B * square + _C * square @ square) @ x
    return x.mT if tall else x
