"""A character-level GPT of about one million parameters."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from thc_lab.demo.data import VOCABULARY_SIZE


@dataclass(frozen=True)
class GptShape:
    """Sizes of the model; the default has about one million parameters."""

    layers: int = 4
    heads: int = 4
    width: int = 144
    context: int = 128


class CausalSelfAttention(nn.Module):
    """Multi-head attention on [batch, time, width]; a position sees itself and earlier ones."""

    def __init__(self, shape: GptShape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.qkv = nn.Linear(shape.width, 3 * shape.width, bias=False)
        self.project = nn.Linear(shape.width, shape.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Attended values, same shape as x."""
        batch, time, width = x.shape
        split = self.qkv(x).view(batch, time, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(split[0], split[1], split[2], is_causal=True)
        projected: Tensor = self.project(attended.transpose(1, 2).reshape(batch, time, width))
        return projected


class Block(nn.Module):
    """Pre-norm transformer block: attention, then a two-layer perceptron, each on a residual path."""

    def __init__(self, shape: GptShape) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(shape.width)
        self.attention = CausalSelfAttention(shape)
        self.perceptron_norm = nn.LayerNorm(shape.width)
        self.perceptron = nn.Sequential(
            nn.Linear(shape.width, 4 * shape.width, bias=False),
            nn.GELU(),
            nn.Linear(4 * shape.width, shape.width, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Block output, same shape as x."""
        x = x + self.attention(self.attention_norm(x))
        updated: Tensor = x + self.perceptron(self.perceptron_norm(x))
        return updated


class Gpt(nn.Module):
    """Token ids [batch, time] to logits [batch, time, VOCABULARY_SIZE]; embedding and output weights are tied."""

    def __init__(self, shape: GptShape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY_SIZE, shape.width)
        self.positions = nn.Embedding(shape.context, shape.width)
        self.blocks = nn.Sequential(*(Block(shape) for _ in range(shape.layers)))
        self.norm = nn.LayerNorm(shape.width)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                residual = name.endswith(("project.weight", "perceptron.2.weight"))
                nn.init.normal_(parameter, std=0.05 / (2 * shape.layers) ** 0.5 if residual else 0.05)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits of the next character at every position."""
        x = _look_back(self.tokens(ids)) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        return functional.linear(self.norm(self.blocks(x)), self.tokens.weight)


def _look_back(x: Tensor) -> Tensor:
    """x[batch, time, width] with half of the channels taken from the previous character.

    A model that sees pairs of characters from the first step (token shift, as in RWKV) learns much within a short demo.
    """
    half = x.shape[2] // 2
    previous = functional.pad(x[:, :-1, half:], (0, 0, 1, 0))
    return torch.cat([x[..., :half], previous], dim=2)


def loss_of(model: Gpt, inputs: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy per character, in nats."""
    logits = model(inputs)
    return functional.cross_entropy(logits.view(-1, VOCABULARY_SIZE), targets.reshape(-1))


@torch.no_grad()
def window_losses(
    model: Gpt, tokens: Tensor, context: int, windows: int | None, first: int, stride: int, batch_size: int = 32
) -> tuple[float, int]:
    """Sum of the losses of every stride-th of the first `windows` (None: all) windows of the text, and their number.

    Windows are `context` characters long and do not overlap; a window's loss is its mean per character, in nats.
    """
    available = (len(tokens) - 1) // context
    available = available if windows is None else min(windows, available)
    inputs = tokens[: available * context].view(available, context)[first::stride]
    targets = tokens[1 : available * context + 1].view(available, context)[first::stride]
    total = 0.0
    for start in range(0, len(inputs), batch_size):
        batch = inputs[start : start + batch_size]
        total += float(loss_of(model, batch, targets[start : start + batch_size])) * len(batch)
    return total, len(inputs)
