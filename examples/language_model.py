"""Train a small language model on packed sequences of real text, on ranks that partly get the same sequences.

    torchrun --nproc-per-node 2 examples/language_model.py grpc://127.0.0.1:8815 text /tmp/checkpoints

The text is the source of Python's own standard library, which is on each machine with Python. Rank 0 trains a tokenizer
of bytes on it and uploads the token ids, unless the server has the dataset. The server packs documents into sequences.
`segment_ids` keep attention within a document, and `position_ids` restart with each document. Two ranks are one tensor
parallel group here: they get the same sequences, from one read, and compare the digests of each step.

A job that was stopped with --stop continues from its checkpoint. The program fails if an epoch had more or fewer tokens
than the dataset, or if the loss did not fall.
"""

from __future__ import annotations

import argparse
import sys
import sysconfig
from pathlib import Path

import bowstring
import torch
import torch.distributed as dist
from bowstring import tokens
from bowstring.torch import BowstringDataset, labels, verify_step
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

LENGTH, VOCABULARY, WIDTH, HEADS, LAYERS = 128, 512, 64, 4, 2


def upload(client: bowstring.Client, name: str, kilobytes: int) -> None:
    """Train a tokenizer on modules of the standard library, and upload what it makes of them."""
    files, size = [], 0
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        if size < kilobytes << 10:
            files.append(path)
            size += path.stat().st_size
    coder = Tokenizer(models.BPE())
    coder.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    coder.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=["<end>"], initial_alphabet=alphabet, show_progress=False
    )
    coder.train_from_iterator((document["text"] for document in tokens.read(*files)), trainer)
    # Functions and classes are documents: what is behind an empty line and is not indented begins one.
    documents = (
        {"key": f"{document['key']}#{number}", "text": part}
        for document in tokens.read(*files)
        for number, part in enumerate(document["text"].split("\n\n\n"))
    )
    client.ingest(name, tokens.encode(documents, coder, end="<end>"), key="key", progress=False)


class Block(nn.Module):
    """Attention and a layer of neurons."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.neurons = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        rows, length, _ = x.shape
        q, k, v = self.qkv(self.before(x)).view(rows, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None])
        x = x + self.out(seen.transpose(1, 2).reshape(rows, length, WIDTH))
        added: torch.Tensor = x + self.neurons(self.between(x))
        return added


class Transformer(nn.Module):
    """A small decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.last, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: torch.Tensor, positions: torch.Tensor, segments: torch.Tensor) -> torch.Tensor:
        # A token sees those before it, of its own document.
        mask = (segments[:, :, None] == segments[:, None, :]).tril()
        x = self.tokens(ids) + self.positions(positions)
        for block in self.blocks:
            x = block(x, mask)
        scores: torch.Tensor = self.head(self.last(x))
        return scores


def learn(model: Transformer, optimizer: torch.optim.Optimizer, batch: dict[str, torch.Tensor]) -> tuple[float, int]:
    """One step, by the gradients of all ranks. Returns the mean loss and the number of tokens, both of this rank."""
    ids, segments = batch["tokens"].long(), batch["segment_ids"].long()
    scores = model(ids, batch["position_ids"].long(), segments)
    wanted = labels(ids, segments)
    loss = nn.functional.cross_entropy(scores.flatten(0, 1), wanted.flatten(), reduction="sum")
    optimizer.zero_grad()
    torch.autograd.backward(loss)
    count = (wanted >= 0).sum()
    total = count.clone()
    dist.all_reduce(total)
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= total
    optimizer.step()
    return float(loss.detach() / count), int((segments > 0).sum())


def main() -> int:
    """Train, or go on training."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("server", help="such as grpc://127.0.0.1:8815")
    parser.add_argument("dataset")
    parser.add_argument("folder", type=Path, help="where the checkpoint is; a job that finds one goes on from it")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=16, help="sequences of a step")
    parser.add_argument("--tp", type=int, default=2, help="ranks that get the same sequences")
    parser.add_argument("--text", type=int, default=200, help="kilobytes of text to upload")
    parser.add_argument("--stop", type=int, default=-1, help="stop after this number of steps, as at the end of a job")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    client = bowstring.connect(args.server)
    if rank == 0 and not client.datasets(args.dataset):
        upload(client, args.dataset, args.text)
    dist.barrier()
    counts = client.dataset(args.dataset).columns(["n_tokens"]).to_arrow()["n_tokens"].to_pylist()

    mesh = init_device_mesh("cpu", (dist.get_world_size() // args.tp, args.tp), mesh_dim_names=("dp", "tp"))
    dataset = BowstringDataset(
        client.dataset(args.dataset).columns(["tokens"]).options(remainder="uneven"),  # no sequence comes twice
        columns=["tokens", "position_ids", "segment_ids"],
        pack={"length": LENGTH, "column": "tokens", "lengths": "n_tokens", "long": "split", "pad": 0},
        shuffle=7,
        global_batch_size=args.batch,
        mesh=mesh,
        digest=True,
    )
    torch.manual_seed(7)  # all ranks begin with the same model
    model = Transformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    checkpoint, done, seen = args.folder / "checkpoint.pt", 0, 0
    losses: list[float] = []
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        dataset.load_state_dict(saved["data"])
        done, seen, losses = saved["done"], saved["seen"], saved["losses"]
        print(f"rank {rank} goes on after step {done}")
    complete = True
    for epoch in range(dataset.epoch, args.epochs):
        for batch in dataset:
            verify_step(batch, mesh=mesh)
            loss, trained = learn(model, optimizer, batch)
            losses.append(loss)
            seen += trained
            done += 1
            if done == args.stop:
                if rank == 0:
                    args.folder.mkdir(parents=True, exist_ok=True)
                    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "done": done}
                    torch.save(
                        {**state, "data": dataset.state_after(batch), "seen": seen, "losses": losses}, checkpoint
                    )
                print(f"rank {rank} ends after step {done}")
                dist.barrier()
                dist.destroy_process_group()
                return 0
        every = torch.tensor(seen)
        dist.all_reduce(every)
        every //= args.tp  # each sequence came to a whole group
        print(f"epoch {epoch}: {int(every)} tokens of {sum(counts)}, loss {losses[-1]:.2f}")
        complete = complete and int(every) == sum(counts)
        seen = 0
    dist.destroy_process_group()
    early, late = sum(losses[:5]) / 5, sum(losses[-5:]) / 5
    fell = late < early - 1
    print(f"rank {rank}: {done} steps; the loss {'fell' if fell else 'did NOT fall'} from {early:.2f} to {late:.2f}")
    return 0 if complete and fell else 1


if __name__ == "__main__":
    sys.exit(main())
