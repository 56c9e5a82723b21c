"""A small language model at its bound, and fed by Bowstring with packed sequences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from bowstring.torch import BowstringDataset, labels
from torch import nn
from torch.utils.data import DataLoader

from gpu.pace import Feed, Tensors, rate
from gpu.served import TOKENS
from gpu.sizes import Sizes

HEAD = 64  # numbers of an attention head, at most
COLUMNS = "tokens", "position_ids", "segment_ids"


class Block(nn.Module):
    """Attention and a layer of neurons."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(1, width // HEAD)
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.neurons = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        q, k, v = self.qkv(self.before(x)).view(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.out(seen.transpose(1, 2).reshape(rows, length, width))
        added: torch.Tensor = x + self.neurons(self.between(x))
        return added


class Transformer(nn.Module):
    """A decoder of some layers."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width = sizes.width
        self.tokens, self.positions = nn.Embedding(TOKENS, width), nn.Embedding(sizes.length, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(sizes.layers))
        self.last, self.head = nn.LayerNorm(width), nn.Linear(width, TOKENS)

    def forward(self, ids: torch.Tensor, positions: torch.Tensor, segments: torch.Tensor) -> torch.Tensor:
        # A token sees those before it, of its own document.
        mask = (segments[:, :, None] == segments[:, None, :]).tril()[:, None]
        x = self.tokens(ids) + self.positions(positions)
        for block in self.blocks:
            x = block(x, mask)
        scores: torch.Tensor = self.head(self.last(x))
        return scores


class Language:
    """A model of text, and the rates of its steps."""

    def __init__(self, sizes: Sizes, device: torch.device) -> None:
        self._sizes, self._device = sizes, device
        self._model = Transformer(sizes).to(device)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), 1e-4)

    def _step(self, tokens: torch.Tensor, positions: torch.Tensor, segments: torch.Tensor) -> None:
        ids, wanted = tokens.long(), labels(tokens.long(), segments)
        self._optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self._device.type, torch.bfloat16):
            scores = self._model(ids, positions.long(), segments)
        torch.autograd.backward(nn.functional.cross_entropy(scores.float().flatten(0, 1), wanted.long().flatten()))
        self._optimizer.step()

    def rates(self, url: str) -> tuple[float, float]:
        """Tokens a second: of batches that are in the device's memory already, and fed by Bowstring."""
        feed = Feed(self._batches(url), self._moved, self._device, self._sizes.stalled)
        try:
            kept = next(feed)
            return self._rate(lambda: kept), self._rate(feed.__next__)
        finally:
            feed.close()

    def _rate(self, take: Any) -> float:
        sizes = self._sizes
        return rate(take, self._step, sizes.sequences * sizes.length, sizes.warm, sizes.seconds)

    def _batches(self, url: str) -> Iterator[Any]:
        """Batches of one epoch after another; the last step of an epoch is left out if it is incomplete."""
        sizes = self._sizes
        dataset = BowstringDataset(
            url,
            "text",
            columns=COLUMNS,
            pack={"length": sizes.length, "column": "tokens", "pad": 0, "long": "split"},
            shuffle=7,
            global_batch_size=sizes.sequences,
            rank=0,
            world_size=1,
        )
        loader: DataLoader[Any] = DataLoader(dataset, batch_size=None)
        while True:
            for batch in loader:
                if len(batch["tokens"]) == sizes.sequences:
                    yield batch

    def _moved(self, batch: Any) -> Tensors:
        return tuple(batch[name].to(self._device, non_blocking=True) for name in COLUMNS)
