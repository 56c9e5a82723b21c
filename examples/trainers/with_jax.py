"""Train with JAX on the devices of a mesh.

python examples/trainers/with_jax.py grpc://127.0.0.1:8815 photos /tmp/checkpoints

JAX puts each step's arrays on the devices, sharded over the mesh. A job goes on from a checkpoint with any number of
devices.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from bowstring.grain import IterDataset
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from training import SIDE, Record, arguments, photographs


def loss(weights: jax.Array, image: jax.Array, label: jax.Array) -> jax.Array:
    scores = image.reshape(len(image), -1).astype(jnp.float32) / 255 @ weights
    return -jnp.take_along_axis(jax.nn.log_softmax(scores), label[:, None], 1).mean()


@jax.jit  # type: ignore[untyped-decorator]
def step(weights: jax.Array, image: jax.Array, label: jax.Array) -> jax.Array:
    return weights - 0.01 * jax.grad(loss)(weights, image, label)


def main() -> None:
    args = arguments(__doc__)
    photos = photographs(args)
    dataset = IterDataset(photos, global_batch_size=args.batch, epochs=args.epochs)
    mesh = Mesh(np.array(jax.devices()), ("data",))
    put = partial(jax.make_array_from_process_local_data, NamedSharding(mesh, PartitionSpec("data")))
    weights: Any = np.zeros((SIDE * SIDE * 3, len(photos.classes("label") or [])), np.float32)
    checkpoint, done = args.folder / "checkpoint.json", 0
    if checkpoint.exists():
        saved = json.loads(checkpoint.read_text())
        dataset, done, weights = dataset.resume(saved["data"]), saved["done"], np.array(saved["weights"], np.float32)
    weights = jax.device_put(weights, NamedSharding(mesh, PartitionSpec()))
    record = Record(args.folder, jax.process_index())
    iterator = iter(dataset)
    for batch in iterator:
        record.write(*divmod(done, dataset.steps), batch["position"].tolist())
        weights = step(weights, put(batch["image"]), put(batch["label"].astype(np.int32)))
        done += 1
        if done == args.stop:
            state = {"data": iterator.get_state(), "done": done, "weights": np.asarray(weights).tolist()}
            if jax.process_index() == 0:  # all are at the same step
                checkpoint.write_text(json.dumps(state))
            break
    iterator.close()
    print(f"{done} steps on {jax.device_count()} devices of {jax.process_count()} processes")


if __name__ == "__main__":
    main()
