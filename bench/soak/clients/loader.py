"""A StatefulDataLoader of torch with workers, which is stopped in the middle of an epoch and goes on from its state."""

from __future__ import annotations

import collections
from typing import Any

from bowstring.errors import BowstringError
from bowstring.torch import BowstringDataset
from torchdata.stateful_dataloader import StatefulDataLoader

from soak import content
from soak.client import COLUMNS, Reader

WORKERS = 2


class Client(Reader):
    """Workers are started anew for each part of an epoch."""

    def turn(self, number: int) -> None:
        seen: collections.Counter[int] = collections.Counter()
        state: dict[str, Any] | None = None
        done = False
        while not done:
            loader = self.loader(number)
            if state is not None:
                loader.load_state_dict(state)
            leaves = self.random.randrange(2, 12) if state is None else 1 << 30
            try:
                for count, batch in enumerate(loader, 1):
                    self.beat()
                    seen.update(int(p) for p in batch["position"])
                    self.found["rows"] += len(batch["position"])
                    self.found["wrong"] += self.wrong(batch)
                    state = loader.state_dict()
                    if count == leaves:
                        break
                else:
                    done = True
            except (BowstringError, OSError) as error:
                self.failed(error)
                self.elsewhere()
            finally:
                del loader
        self.judge(seen, range(content.SAMPLES))

    def loader(self, epoch: int) -> StatefulDataLoader[Any]:
        """A loader of an epoch at the server whose turn it is."""

        def made() -> BowstringDataset:
            url = self.urls[self.at % len(self.urls)]
            return BowstringDataset(
                url,
                content.DATASET,
                columns=COLUMNS,
                shuffle=self.spec["seed"],
                global_batch_size=32,
                rank=0,
                world_size=1,
            )

        dataset = self.until_done(made)
        dataset.set_epoch(epoch)
        return StatefulDataLoader(dataset, batch_size=None, num_workers=WORKERS)

    @staticmethod
    def wrong(batch: Any) -> int:
        """How many samples are not what their keys say."""
        keys = [int(k) for k in batch["key"]]
        images = batch["image"]
        return sum(
            content.digest_of(bytes(memoryview(image.numpy()) if hasattr(image, "numpy") else image))
            != content.digest(key)
            for key, image in zip(keys, images, strict=True)
        )
