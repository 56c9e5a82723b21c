"""A dataset as a stream of batches for torch's DataLoader."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from torch.utils.data import IterableDataset, get_worker_info

from bowstring._requests.launcher import check_given, check_name, check_rank
from bowstring._requests.mesh import in_place_of
from bowstring._requests.state import Place, Share, State, check, place_for, portable
from bowstring._requests.state import portable_state as portable_state_of
from bowstring._source import opened
from bowstring._transport.tls import Tls
from bowstring.client import Client
from bowstring.dataset import Dataset
from bowstring.preview import Explanation
from bowstring.torch._arguments import check_output, global_size, loader_size, of_images
from bowstring.torch._columns import Batch, tune_malloc
from bowstring.torch._decode import Decode
from bowstring.torch._epochs import Epochs, Said
from bowstring.torch._iterator import DatasetIterator, Job
from bowstring.torch._ranks import check_shares, ranks_here
from bowstring.torch._rows import steps_for
from bowstring.torch._sharded import check_caller


class BowstringDataset(IterableDataset[Any]):
    """A dataset as an `IterableDataset`, for each rank and each worker its share.

    ```python
    dataset = BowstringDataset("grpc://127.0.0.1:8815", "photos", split="train", shuffle=7, global_batch_size=256)
    loader = StatefulDataLoader(dataset, batch_size=None, num_workers=2)
    for epoch in range(10):
        for batch in loader:
            train(batch["image"], batch["label"])
    ```

    Each iteration is of the next epoch, however far the one before it got; `set_epoch` says another.

    Give the DataLoader `batch_size=None`: the batches are made by the server. Step k of an epoch is the same samples
    with any number of ranks and workers; a rank gets its part of them. Worker w of N serves the steps w, w + N, and so
    on, so that a loader, which takes turns, gives them in order.

    On several ranks each gets as many batches as the others, so that none waits for ever: unless the source says by
    `options(remainder=...)` what becomes of the last, incomplete step, it is filled with samples from the beginning of
    the epoch's order (`pad`), as `DistributedSampler` does. `explain` says how many. A single rank gets each sample
    once.

    Args:
        source: A [Dataset][bowstring.Dataset], narrowed and shuffled as you like; or a client, or an address.
        name: The dataset's name, if the source is a client or an address.
        global_batch_size: Samples of a step, all ranks together; 64 without it. Where it is no multiple of the number
            of ranks, their batches differ by one sample.
        split: Which split of it.
        snapshot: Which snapshot, by number or tag; without it, the newest one now.
        columns: Which columns.
        where: Which rows.
        sql: Likewise, in SQL, as of [Dataset.where][bowstring.Dataset.where].
        operators: What the server makes of columns, by name, as [Dataset.operators][bowstring.Dataset.operators] takes
            it; or a transform of torchvision, for all columns of images. Their columns are tensors then: of one shape
            one tensor, of several a list of them.
        shuffle: The seed of the global shuffle, another order for each epoch; False for order of position. Without it,
            as the source is.
        rank: Which rank this is. Without it, what torch.distributed says if it is initialised; else the environment
            variables RANK and WORLD_SIZE; else there is only one.
        world_size: How many ranks there are.
        mesh: In the place of `rank` and `world_size`, how ranks are laid out where some of them get the same samples: a
            `DeviceMesh` of torch, Megatron's `parallel_state`, or what else [Mesh.of][bowstring.Mesh] takes. `rank` and
            `world_size` count data ranks then.
        digest: Whether each batch has a `digest` of its samples, which
            [verify_step][bowstring.torch.verify_step] compares among ranks.
        output: `batches`, each a [Batch][bowstring.torch.Batch]; or `samples`, each a dictionary, for a DataLoader
            with a batch size of its own; or `dlpack`, each a dictionary of what has `__dlpack__`, for JAX, CuPy and
            others: columns of tensors and of numbers, the rest as Arrow has it. If there are several workers, only one
            reads samples, unless `loader_batch_size` is given.
        loader_batch_size: With `output="samples"`, the `batch_size` of the DataLoader. Its workers then share the
            samples out so that each makes whole batches; a rank's part of a step has to be a multiple of it.
        decode: How images are decoded, in the worker: `torchvision`, `pillow`, `auto` (the first of them that is
            installed), a function of a `uint8` tensor, or a dictionary of these by column. Without it their bytes come
            as they are, as [Blobs][bowstring.torch.Blobs].
        transform: A function of a sample (a dictionary), called after decoding.
        collate: A function of the list of a batch's samples, in the place of [collate][bowstring.torch.collate].
        on_decode_error: `raise` a [DecodeError][bowstring.torch.DecodeError], or `skip` the sample: then its batch is
            smaller. A batch that nothing is left of is left out; on several ranks that is an error.
        tune_malloc: Whether workers let glibc keep its memory between batches. It applies to them alone.
        token: As of [connect][bowstring.connect], if the source is an address.
        tls: Likewise.
        batch_size: What `global_batch_size` was called once.
    """

    def __init__(
        self,
        source: Dataset | Client | str,
        name: str | None = None,
        *,
        global_batch_size: int | None = None,
        split: str | None = None,
        snapshot: int | str | None = None,
        columns: Iterable[str] | None = None,
        where: str | None = None,
        sql: str | None = None,
        operators: Mapping[str, Any] | Callable[[Any], Any] | None = None,
        shuffle: int | Literal[False] | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        mesh: Any = None,
        digest: bool = False,
        output: Literal["batches", "samples", "dlpack"] = "batches",
        loader_batch_size: int | None = None,
        decode: str | Decode | Mapping[str, str | Decode] | None = None,
        transform: Callable[[Any], Any] | None = None,
        collate: Callable[[list[Any]], Any] | None = None,
        on_decode_error: Literal["raise", "skip"] = "raise",
        tune_malloc: bool = True,
        assign: Literal["plan", "local"] | None = None,
        bucket_by_length: str | Mapping[str, Any] | None = None,
        pack: Mapping[str, Any] | None = None,
        token: str | None = None,
        tls: Tls | None = None,
        batch_size: None = None,
    ) -> None:
        check_name("batch_size", batch_size)
        size = global_size(global_batch_size)
        loader_batch_size = loader_size(loader_batch_size, output)
        check_output(output, decode, transform, collate)
        dataset = opened(source, name, split=split, snapshot=snapshot, where=where, sql=sql, token=token, tls=tls)
        if pack is not None:
            dataset = dataset.options(pack=pack)
        if columns is not None:  # those of packed sequences, too
            dataset = dataset.columns(columns)
        if operators is not None:
            dataset = dataset.operators(operators if isinstance(operators, Mapping) else of_images(dataset, operators))
        if shuffle is True:
            raise ValueError("shuffle: got True, want the seed, an integer, such as 0; or False")
        if shuffle is not None:
            dataset = dataset.shuffle(shuffle) if shuffle is not False else dataset._but(_seed=None)
        if assign is not None:
            dataset = dataset.options(assign=assign)
        if bucket_by_length is not None:
            dataset = dataset.options(bucket_by_length=bucket_by_length)
        if digest:
            dataset = dataset.options(digest=True)
        self._mesh, rank, world_size = in_place_of(rank, world_size, mesh)
        check_given(rank, world_size)
        self.global_batch_size = size
        self.output = output
        self._loader_batch = loader_batch_size
        self._dataset, self._steps = steps_for(dataset, decode, transform, collate, on_decode_error)
        self._steps.dlpack = output == "dlpack"
        self._ranks = None if rank is None or world_size is None else (rank, world_size)
        self._pinned: tuple[int, tuple[int, int]] | None = None  # the ranks of a process that this was sent from
        self._tune = tune_malloc
        if output == "samples" and not self._strict:
            raise ValueError("order: single samples come in strict order only; output='batches' takes the others, too")
        # An error for one rank is an error for all; the number of ranks is determined when it is needed.
        self._check_ranks(*(self._ranks or (0, 1)), "rank")
        self._epochs = Epochs()
        # A state, the word by which it is to be used, and what `set_epoch` had said before.
        self._pending: tuple[State, Said | None, int | None] | None = None
        self._iterator: DatasetIterator | None = None
        self._lengths: dict[tuple[int, int], int] = {}  # by rank and number of ranks

    # --- what it is -------------------------------------------------------

    @property
    def dataset(self) -> Dataset:
        """The dataset that is read."""
        return self._dataset

    @property
    def remainder(self) -> str:
        """The handling of the last, incomplete step: the source's; else `pad`, or `uneven` for a single rank."""
        return self._remainder(self.world_size)

    @property
    def rank(self) -> int:
        """The rank whose share this is."""
        return self._resolved()[0]

    @property
    def world_size(self) -> int:
        """How many ranks there are."""
        return self._resolved()[1]

    def _resolved(self) -> tuple[int, int]:
        if self._ranks is not None:
            return self._ranks
        found, name = ranks_here(self._pinned)
        self._check_ranks(*found, name)
        return found

    def _remainder(self, world: int) -> str:
        given: str = self._dataset.request().get("remainder") or ("uneven" if world == 1 else "pad")
        return given

    def _read_by(self, world: int) -> Dataset:
        """The dataset as this number of ranks reads it."""
        remainder = self._remainder(world)
        return self._dataset if remainder == "uneven" else self._dataset._with_options(remainder=remainder)

    def _check_ranks(self, rank: int, world: int, name: str) -> None:
        """Raise an error if something does not work with this number of ranks."""
        check_rank(rank, world, name)
        check_shares(
            self.global_batch_size,
            world,
            samples=self.output == "samples",
            loader=self._loader_batch,
            even=self._even(world),
            skip=self._steps.skip,
        )

    def _even(self, world: int) -> bool:
        """Whether each of this number of ranks is to get as many batches as the others."""
        return world > 1 and self._remainder(world) != "uneven"

    def __repr__(self) -> str:
        parts = [f"global batches of {self.global_batch_size}"]
        try:
            rank, world = self._resolved()
        except ValueError:  # of the environment; it is raised where the value is used
            pass
        else:
            parts += [f"rank {rank} of {world}"] if world > 1 else []
            parts += [f"remainder={self._remainder(world)!r}"] if world > 1 else []
        return f"<BowstringDataset of {self._dataset!r}; {', '.join(parts)}>"

    def explain(self) -> Explanation:
        """Describe an epoch on all ranks: rows, bytes, steps, and how many samples come twice or not at all."""
        world = self.world_size
        return self._read_by(world).explain(batch=self.global_batch_size, world_size=world)

    def __len__(self) -> int:
        """Batches that this rank gets in an epoch, all its workers together; samples, if `output` says so.

        The server is asked once.
        """
        rank, world = self._resolved()
        if (rank, world) not in self._lengths:
            size = self.global_batch_size
            share = self._read_by(world).plan(batch=size, world_size=world).ranks[rank]
            full = (rank + 1) * size // world - rank * size // world  # of a step but the last
            nothing = share.rows == full * (share.steps - 1)  # is left of the last step for it
            self._lengths[rank, world] = share.steps - nothing if self.output != "samples" else share.rows
        return self._lengths[rank, world]

    def __bool__(self) -> bool:
        return True

    def __getstate__(self) -> dict[str, Any]:
        # A worker that is not forked does not know of torch.distributed; a rank's own process knows better than this.
        return {**self.__dict__, "_pinned": (os.getpid(), self._resolved()), "_iterator": None}

    # --- epochs -----------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration is of."""
        return self._epochs.next

    def set_epoch(self, epoch: int) -> None:
        """Say of which epoch the next iteration is, as with `DistributedSampler`. Those after it go on from there.

        Without it the first iteration is of epoch 0, or that of the state that was loaded, and each other of the next
        epoch, however far the one before it got. Persistent workers get it, too. A state that was loaded into the
        dataset is forgotten, unless it is of this epoch.
        """
        if isinstance(epoch, bool) or not isinstance(epoch, int) or not 0 <= epoch < 2**63:
            raise ValueError(f"epoch: got {epoch!r}, want an integer, 0 or more")
        check_caller(self.world_size)
        if self._pending is not None:
            state, before, _ = self._pending
            if before is None or self._epochs.heard(before) or state["epoch"] != epoch:
                self._pending = None
        said = self._epochs.say(epoch)
        self._pending = None if self._pending is None else (self._pending[0], said, epoch)

    # --- iteration --------------------------------------------------------

    def _share_of(self) -> Share:
        info = get_worker_info()
        rank, world = self._resolved()
        if info is None:
            return Share(rank, world)
        if self.output == "samples" and self._loader_batch is None:
            # How many samples the loader puts in a batch is not known. Were they shared out, each worker would end
            # with a batch that is not full, and there would be more of them than the loader says.
            if info.num_workers > 1 and info.id == 0:
                warnings.warn(
                    f"output='samples': one of {info.num_workers} workers reads, as it is not known how many samples "
                    "make a batch; loader_batch_size says it, and lets all of them read",
                    stacklevel=3,
                )
            return Share(rank, world) if info.id == 0 else Share(rank, world, info.id, info.num_workers, idle=True)
        return Share(rank, world, info.id, info.num_workers)

    def __iter__(self) -> DatasetIterator:
        share = self._share_of()
        self._check_ranks(share.rank, share.world, "rank")
        check_caller(share.world)
        if get_worker_info() is not None and self._tune and not any(name.startswith("MALLOC_") for name in os.environ):
            tune_malloc()
        began = self._epochs.begin()
        state, said = self._taken(began.said)
        if state is not None and state["epoch"] != began.epoch:
            began = self._epochs.correct(began, state["epoch"])
        if share.idle:
            place = Place(began.epoch, 0)
        else:
            place = Place(began.epoch, share.worker, share.workers) if state is None else place_for(state, share)
        job = Job(
            self._read_by(share.world),
            self._request(),
            self.global_batch_size,
            self._steps,
            samples=self.output == "samples",
            even=self._even(share.world),
            mesh=self._mesh,
        )
        self._iterator = DatasetIterator(job, share, place, self._epochs, began, said=said, late=self._epochs.late)
        return self._iterator

    def _taken(self, said: Said | None) -> tuple[State | None, int | None]:
        """The state that this iteration goes on from, if it is one; and the epoch that `set_epoch` has said for it."""
        said_epoch = None if said is None else said.epoch
        state, word, before = self._pending or (None, None, None)
        if state is not None and word is None:  # loaded in this process, by a loader
            self._pending = None
        elif word is not None and said is not None and said.number == word.number:
            said_epoch = before
        else:
            state = None
        return state, said_epoch

    # --- states -----------------------------------------------------------

    def _request(self) -> dict[str, Any]:
        # Without fields that depend on the number of ranks: a state can be resumed with any number of them.
        return self._dataset.request(batch=self.global_batch_size)

    @property
    def _strict(self) -> bool:
        return bool(self._dataset.request().get("order", "strict") == "strict")

    def state_at(self, step: int, epoch: int | None = None) -> State:
        """The state of a job that has done the steps before `step` of an epoch: without it, of the current iteration.

        A training loop that counts its steps needs no other: it works with every loader and trainer. It takes strict
        order, in which a step's number says which samples were used.
        """
        if isinstance(step, bool) or not isinstance(step, int) or step < 0:
            raise ValueError(f"step: got {step!r}, want an integer, 0 or more")
        if step and not self._strict:
            raise ValueError(
                f"order: with {self._dataset.request()['order']!r} a batch may have samples of other steps, so that "
                f"step {step} does not say which were used; take the state_dict of a StatefulDataLoader, which goes on "
                "with as many ranks and workers, or use options(order='strict')"
            )
        return portable(self._request(), self._epochs.current if epoch is None else epoch, step)

    def state_after_steps(self, steps: int) -> State:
        """The state of a job after this number of steps, all epochs together, as trainers count them.

        ```python
        dataset.load_state_dict(dataset.state_after_steps(trainer.global_step))
        ```

        A step is a batch of each rank. It holds where each epoch before was read to its end.
        """
        batches = len(self)
        if self.output == "samples":
            batches = self._read_by(self.world_size).plan(batch=self.global_batch_size).steps
        epoch, step = divmod(steps, max(1, batches))
        return self.state_at(step, epoch)

    def state_after(self, batch: Batch) -> State:
        """The state of a job that has done all steps up to the one of a batch."""
        if not isinstance(batch, Batch) or batch.step < 0:
            raise TypeError("batch: want one that this dataset gave; state_at takes a step's number")
        return self.state_at(batch.step + 1, batch.epoch)

    def state_dict(self) -> State:
        """Where this process is in its share of the epoch: for StatefulDataLoader, which asks each worker.

        A process whose workers do the reading does not know it: ask the StatefulDataLoader, or use `state_at`.
        """
        if self._iterator is not None:
            return self._iterator.state_dict()
        if get_worker_info() is None and self._epochs.read:
            raise RuntimeError(
                "the workers read, and this process does not know how much of it was used: take the state_dict of a "
                "StatefulDataLoader, or state_at(step) of this dataset"
            )
        return dict(self._pending[0]) if self._pending else portable(self._request(), self.epoch, 0)

    def load_state_dict(self, state: Mapping[str, Any] | list[Any]) -> None:
        """Go on where a job was, in the next iteration; in those after it, from the beginning.

        Takes what `state_dict` of a StatefulDataLoader gave, whatever its number of ranks and workers, a list of such
        of all ranks, or what [portable_state][bowstring.torch.portable_state] made of them; or a state of a dataset.
        Load it before the workers are started.
        """
        whole = isinstance(state, list) or "bowstring" not in state
        found = check(portable_state_of(state) if whole else state, self._request())
        if get_worker_info() is not None:
            self._pending = found, None, None
            return
        if "worker" in found:  # of an iterator: for this very share, or of all there is
            share = self._share_of()
            theirs = Share(found["rank"], found["world"], found["worker"], found["workers"])
            if theirs != share:
                found = check(portable_state_of(found), self._request())
        self._pending = found, *self._epochs.load(found["epoch"])
