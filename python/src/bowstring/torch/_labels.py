"""Labels of packed sequences, for a language model."""

from __future__ import annotations

import torch

IGNORED = -100  # what cross_entropy leaves out


def labels(tokens: torch.Tensor, segments: torch.Tensor, ignored: int = IGNORED) -> torch.Tensor:
    """The token that follows each token in its document, of sequences that `pack` has made.

    Args:
        tokens: Token ids; the last dimension is a sequence.
        segments: `segment_ids` of the same shape: 0 is padding.
        ignored: What stands where nothing follows: at a document's last token, and in padding.

    Returns:
        `int64` of the same shape, for `torch.nn.functional.cross_entropy`.
    """
    if tokens.shape != segments.shape:
        raise ValueError(f"segments: got shape {tuple(segments.shape)}, want that of tokens, {tuple(tokens.shape)}")
    wanted = torch.full(tokens.shape, ignored, dtype=torch.int64, device=tokens.device)
    follows = (segments[..., 1:] == segments[..., :-1]) & (segments[..., 1:] > 0)
    following = tokens[..., 1:].to(torch.int64)
    wanted[..., :-1] = torch.where(follows, following, ignored)
    return wanted
