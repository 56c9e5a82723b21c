"""Samples for torch's DataLoader: streams that resume, and random access. Needs the extra `[torch]`.

```python
from bowstring.torch import BowstringDataset
from torchdata.stateful_dataloader import StatefulDataLoader

dataset = BowstringDataset("grpc://127.0.0.1:8815", "photos", split="train", shuffle=7, global_batch_size=256)
loader = StatefulDataLoader(dataset, batch_size=None, num_workers=2)
```
"""

from bowstring._requests.state import StateMismatch, portable_state
from bowstring.torch._columns import Batch, Blobs, Sequences
from bowstring.torch._dataset import BowstringDataset
from bowstring.torch._decode import DecodeError
from bowstring.torch._iterator import DatasetIterator
from bowstring.torch._labels import labels
from bowstring.torch._map import BowstringMapDataset
from bowstring.torch._rows import collate
from bowstring.torch._sharded import ShardedTwice
from bowstring.torch._verify import StepMismatch, verify_step

__all__ = [
    "Batch",
    "Blobs",
    "BowstringDataset",
    "BowstringMapDataset",
    "DatasetIterator",
    "DecodeError",
    "Sequences",
    "ShardedTwice",
    "StateMismatch",
    "StepMismatch",
    "collate",
    "labels",
    "portable_state",
    "verify_step",
]
