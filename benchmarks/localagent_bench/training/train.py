"""Trains lfm2-nano from scratch: `python -m localagent_bench.training.train --out FOLDER`.

The schedule depends on the number of the step alone and a conversation on its number alone, so a run can be
repeated, and one that was stopped goes on with `--resume`. The dependency group `train` has what this needs:
torch and tokenizers, gguf and safetensors.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from localagent_bench.training import export, tokenizer
from localagent_bench.training.corpus import MAIN, Batch, Corpus, batches, conversation, rendered, renderer
from localagent_bench.training.muon import Muon
from localagent_bench.training.network import Weights, fresh_weights, hidden_states, logits
from localagent_bench.training.shape import Shape

MATRIX_RATE, OTHER_RATE = 0.02, 4e-3
WARM_UP, DECAY_FROM = 50, 0.45
CHECKPOINT = "checkpoint.pt"


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """What one training run is: `rate` scales both learning rates, `tokens` is the size of a batch."""

    steps: int
    seed: int = 0
    tokens: int = 4096
    rate: float = 1.0
    save_every: int = 500

    def scale(self, step: int) -> float:
        """The share of the full learning rates at this step: warm-up, plateau, linear decay to 2 %."""
        decay = (self.steps - step) / (self.steps * (1 - DECAY_FROM))
        return self.rate * min(1.0, (step + 1) / WARM_UP, max(decay, 0.02))


class Trainer:
    """The weights and the optimizers' state, both changed by `step`."""

    def __init__(self, shape: Shape, run: TrainingRun) -> None:
        self.shape, self.run = shape, run
        self.weights = fresh_weights(shape, run.seed)
        for weight in self.weights.values():
            weight.requires_grad_(True)
        matrices = [w for name, w in self.weights.items() if w.ndim == 2 and "embed" not in name]
        others = [w for name, w in self.weights.items() if w.ndim != 2 or "embed" in name]
        self.muon = Muon(matrices, MATRIX_RATE)
        self.adam = torch.optim.Adam(others, lr=OTHER_RATE, betas=(0.9, 0.98), fused=True)
        self.done = 0

    def step(self, batch: Batch) -> float:
        """One update; returns the mean loss of the written tokens."""
        self.muon.rate = MATRIX_RATE * self.run.scale(self.done)
        self.adam.param_groups[0]["lr"] = OTHER_RATE * self.run.scale(self.done)
        for weight in self.weights.values():
            weight.grad = None
        with torch.autocast("cpu", torch.bfloat16):
            loss = batch_loss(self.weights, self.shape, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.weights.values(), 1.0)
        self.muon.step()
        self.adam.step()
        self.done += 1
        return float(loss.detach())

    def save(self, path: Path, following: int) -> None:
        """Write a checkpoint; `following` is the conversation to go on with."""
        state = {
            "done": self.done,
            "following": following,
            "weights": {name: weight.detach() for name, weight in self.weights.items()},
            "muon": self.muon.state_dict(),
            "adam": self.adam.state_dict(),
        }
        torch.save(state, path.with_suffix(".part"))
        path.with_suffix(".part").replace(path)

    def resume(self, path: Path) -> int:
        """Read a checkpoint; returns the conversation to go on with."""
        state: dict[str, Any] = torch.load(path, weights_only=True)
        self.done = state["done"]
        with torch.no_grad():
            for name, weight in self.weights.items():
                weight.copy_(state["weights"][name])
        self.muon.load_state_dict(state["muon"])
        self.adam.load_state_dict(state["adam"])
        following: int = state["following"]
        return following


def batch_loss(weights: Weights, shape: Shape, batch: Batch) -> torch.Tensor:
    """Mean cross entropy of the tokens that the model is to write, by their weights."""
    ids = torch.zeros(batch.rows, batch.length, dtype=torch.long)
    carried = torch.zeros(batch.rows, batch.length)
    for row, example in enumerate(batch.examples):
        ids[row, : len(example.ids)] = torch.tensor(example.ids)
        carried[row, : len(example.ids)] = torch.tensor(example.weights)
    targets, shares = ids.flatten()[1:], carried.flatten()[1:]  # each token is predicted from those before it
    rows = shares.nonzero().squeeze(1)
    states = hidden_states(weights, shape, ids).flatten(0, 1)
    losses = F.cross_entropy(logits(weights, states[rows]).float(), targets[rows], reduction="none")
    return (losses * shares[rows]).sum() / shares[rows].sum()


def learn_tokenizer(seed: int) -> dict[str, Any]:
    """The `tokenizer.json` for this corpus."""
    render = renderer()
    return tokenizer.learn(rendered(conversation(seed, number, MAIN), render) for number in range(4000))


def train(run: TrainingRun, out: Path, resume: bool) -> None:
    """Train, write a checkpoint now and then, and both forms of the weights at the end."""
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(run.seed)
    vocabulary = out / "tokenizer.json"
    if not vocabulary.exists():
        vocabulary.write_text(json.dumps(learn_tokenizer(run.seed), ensure_ascii=False))
    tokens = json.loads(vocabulary.read_text())
    trainer = Trainer(Shape(), run)
    first = trainer.resume(out / CHECKPOINT) if resume else 0
    corpus = Corpus(tokenizer.load(tokens), run.seed)
    stream = batches(corpus, first, lambda: trainer.done / run.steps, run.tokens)
    losses, started, seen = [], perf_counter(), 0
    while trainer.done < run.steps:
        batch = next(stream)
        losses.append(trainer.step(batch))
        seen += sum(len(example.ids) for example in batch.examples)
        if trainer.done % 50 == 0:
            pace = seen / (perf_counter() - started)
            mean = sum(losses) / len(losses)
            sys.stderr.write(
                f"step {trainer.done:>6,} of {run.steps:,}  loss {mean:.4f}  {pace:,.0f} tokens/s\n"
            )
            losses, started, seen = [], perf_counter(), 0
        if trainer.done % run.save_every == 0 or trainer.done == run.steps:
            trainer.save(out / CHECKPOINT, batch.following)
    export.write(trainer.weights, trainer.shape, tokens, out)


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description="Train lfm2-nano from scratch.")
    parser.add_argument("--out", type=Path, required=True, help="folder for checkpoints and weights")
    parser.add_argument(
        "--steps", type=int, default=14_400, help="steps of 4,096 tokens, earlier ones included"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the weights and the corpus")
    parser.add_argument("--rate", type=float, default=1.0, help="scale of the learning rates")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in the folder")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    train(TrainingRun(options.steps, options.seed, rate=options.rate), options.out, options.resume)


if __name__ == "__main__":
    main()
