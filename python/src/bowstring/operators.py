"""Operators that transform samples before they are sent, and their results.

```python
from bowstring import operators

crops = operators.from_torchvision(v2.Compose([v2.RandomResizedCrop(224), v2.RandomHorizontalFlip()]))
for batch in dataset.operators(image=crops).batches(256):
    images = operators.arrays(batch)["image"]  # 256 x 3 x 224 x 224, uint8, no copy
```

The server decodes and transforms, with the names and parameters of `torchvision.transforms.v2` and
`torchaudio.transforms`. Random operators draw from the seed of `shuffle`, the epoch and the sample's position, so a
repeated request gives the same result.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bowstring.errors import InvalidRequest

Step = dict[str, dict[str, Any]]

__all__ = ["NoOperator", "arrays", "expression", "from_torchvision", "tensors", "tokens"]


class NoOperator(InvalidRequest):
    """A transform for which the server has no operator. The text names the transform and its parameter."""

    code = "INVALID_ARGUMENT"


def expression(text: str) -> dict[str, str]:
    """A new metadata column, computed by an expression in the language of `where`.

    ```python
    dataset.operators(area=operators.expression("width * height"), wide=operators.expression("width > height"))
    ```

    The column's type is bool, int64, double, string, timestamp or duration, as the expression has it. It is null if a
    column that the value needs is null. A test of a null is false, as in `where`.
    """
    return {"expression": text}


def tokens(columns: str | Sequence[str], *steps: Step) -> dict[str, Any]:
    """A new column of lists of tokens, made of one or more metadata columns of such lists.

    ```python
    joined = {"Concat": {"bos": 1, "eos": 2}}
    ids = [joined, {"Shift": {"by": -1}}, {"Pad": {"length": 1024, "value": 0}}]
    labels = [joined, {"ToDtype": {"dtype": "int64"}}, {"Shift": {"by": 1}}, {"Pad": {"length": 1024, "value": -100}}]
    dataset.operators(
        input_ids=operators.tokens(["prompt", "answer"], *ids),
        attention_mask=operators.tokens(["prompt", "answer"], *ids, {"Mask": {}}),
        labels=operators.tokens(["prompt", "answer"], *labels),
    )
    ```

    The steps are `Concat`, `Shift`, `Split`, `Pad`, `Mask` and `ToDtype`. Lists that all have one length come as
    `fixed_size_list`, which torch gets as one tensor. A row is null if one of its columns is.
    """
    return {"tokens": [columns] if isinstance(columns, str) else list(columns), "steps": list(steps)}


# Transforms by name, with the attributes that are their parameters. None is a default that differs.
_PARAMETERS: dict[str, tuple[str, ...]] = {
    "RandomResizedCrop": ("size", "scale", "ratio", "interpolation", "antialias"),
    "Resize": ("size", "interpolation", "max_size", "antialias"),
    "CenterCrop": ("size",),
    "RandomCrop": ("size", "padding", "pad_if_needed", "fill", "padding_mode"),
    "Pad": ("padding", "fill", "padding_mode"),
    "RandomHorizontalFlip": ("p",),
    "RandomVerticalFlip": ("p",),
    "RandomRotation": ("degrees", "interpolation", "expand", "center", "fill"),
    "ColorJitter": ("brightness", "contrast", "saturation", "hue"),
    "RandAugment": ("num_ops", "magnitude", "num_magnitude_bins", "interpolation", "fill"),
    "GaussianBlur": ("kernel_size", "sigma"),
    "RandomErasing": ("p", "scale", "ratio", "value"),
    "Grayscale": ("num_output_channels",),
    "Normalize": ("mean", "std"),
}
_NOTHING = {"Identity", "ToPureTensor"}
_TENSOR = {"ToImage", "PILToTensor"}  # from here on channels come first


def from_torchvision(transform: Any) -> list[Step]:
    """The list of operators equivalent to a transform of torchvision, or to a `Compose` of several.

    It begins with decoding. Without `ToImage` or a similar transform, channels come last, as in images of Pillow. The
    pixels are those of torchvision on images of Pillow. Random draws differ, because the server has its own random
    numbers.

    Raises:
        NoOperator: If there is no such operator. The other operators can stay in the training process, as `transform`
            of [BowstringDataset][bowstring.torch.BowstringDataset].
    """
    steps: list[Step] = [{"Decode": {}}]
    for i, one in enumerate(_flat(transform)):
        steps += _step(one, i)
    return steps


def _flat(transform: Any) -> list[Any]:
    if isinstance(transform, (list, tuple)) or type(transform).__name__ in ("Compose", "Sequential"):
        inner = transform.transforms if hasattr(transform, "transforms") else transform
        return [one for each in inner for one in _flat(each)]
    return [transform]


def _step(transform: Any, at: int) -> list[Step]:
    name = type(transform).__name__
    if not type(transform).__module__.startswith(("torchvision.", "torch.nn")):
        raise NoOperator(f"transforms[{at}]: {name} of {type(transform).__module__} is no transform of torchvision")
    if name in _NOTHING:
        return []
    if name in _TENSOR:
        return [{"ToImage": {}}]
    if name == "ToTensor":
        return [{"ToImage": {}}, {"ToDtype": {"dtype": "float32", "scale": True}}]
    if name in ("ToDtype", "ConvertImageDtype"):
        dtype = transform.dtype
        if isinstance(dtype, Mapping):
            raise NoOperator(f"transforms[{at}]: ToDtype: dtype: got one for each kind of input, want one")
        scale = bool(getattr(transform, "scale", True))
        return [{"ToDtype": {"dtype": str(dtype).removeprefix("torch."), "scale": scale}}]
    if name not in _PARAMETERS:
        raise NoOperator(f"transforms[{at}]: there is no operator {name}; there are {', '.join(sorted(_PARAMETERS))}")
    given = {}
    for parameter in _PARAMETERS[name]:
        value = getattr(transform, parameter, None)
        if parameter == "antialias" or value is None:
            continue
        given[parameter] = _plain(value, f"transforms[{at}]: {name}: {parameter}")
    return [{name: given}]


def _plain(value: Any, at: str) -> Any:
    """A value in JSON form."""
    if isinstance(value, enum.Enum):
        return str(value.value)
    if isinstance(value, Mapping):  # fill by kind of input: torchvision stores one for all others
        if len(value) == 1:
            return _plain(next(iter(value.values())), at)
        raise NoOperator(f"{at}: got one for each kind of input, want one")
    if isinstance(value, (bool, int, float, str)) or value is None:
        return value
    if isinstance(value, (np.integer, np.floating)):
        return value.item()
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Sequence):
        return [_plain(one, at) for one in value]
    raise NoOperator(f"{at}: got {value!r}, which has no JSON")


def checked(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Operators by column, in the form of requests.

    A column's operators are a list, its JSON, a transform of torchvision, an expression, or tokens.
    """
    made: dict[str, Any] = {}
    for name, steps in columns.items():
        if isinstance(steps, str):
            steps = json.loads(steps)
        elif not isinstance(steps, Mapping) and not (isinstance(steps, Iterable) and _is_list(steps)):
            steps = from_torchvision(steps)
        made[name] = dict(steps) if isinstance(steps, Mapping) else list(steps)
    return made


def _is_list(steps: Any) -> bool:
    return isinstance(steps, (list, tuple)) and all(isinstance(step, Mapping) for step in steps)


def runs_on_blobs(columns: Mapping[str, Any]) -> bool:
    """Whether any operator of a request reads blobs; expressions and tokens only compute metadata columns."""
    return any("expression" not in steps and "tokens" not in steps for steps in columns.values())


def is_ragged(field: pa.Field) -> bool:
    """Whether a column holds tensors of different shapes."""
    made = (field.metadata or {}).get(b"bowstring.made")
    return made is not None and None in json.loads(made).get("shape", [])


def arrays(batch: pa.RecordBatch, *, writable: bool = False) -> dict[str, Any]:
    """The tensors of a batch by column, as arrays of NumPy over its memory.

    Tensors of one shape are one array, with the samples along its first axis and zeros for a null. Tensors of different
    shapes are a list, with None for a null. Each has `__dlpack__`, which JAX, CuPy and others take. Columns without
    tensors are left out.

    Args:
        batch: A record batch, or a part of one.
        writable: Copy the tensors. **Arrays over the batch's memory are read-only**: NumPy raises ValueError when one
            is written to.
    """
    return {
        field.name: tensors(column, field, writable=writable)
        for field, column in zip(batch.schema, batch.columns, strict=True)
        if is_ragged(field) or isinstance(field.type, pa.FixedShapeTensorType)
    }


def tensors(
    column: pa.Array, field: pa.Field, *, writable: bool = False
) -> npt.NDArray[Any] | list[npt.NDArray[Any] | None]:
    """One column of tensors: see [arrays][bowstring.operators.arrays]."""
    found = _tensors(column, field)
    if not writable:
        return found
    return [one if one is None else one.copy() for one in found] if isinstance(found, list) else found.copy()


def _tensors(column: pa.Array, field: pa.Field) -> npt.NDArray[Any] | list[npt.NDArray[Any] | None]:
    if not is_ragged(field):
        storage, shape = column.storage, column.type.shape
        values = storage.values  # flatten() would drop nulls
        size = storage.type.list_size
        return _numbers(values, storage.offset * size, len(storage) * size).reshape(len(storage), *shape)
    if not len(column):
        return []
    if isinstance(column, pa.ExtensionArray):  # some versions of pyarrow know the type, others do not
        column = column.storage
    data, shapes = column.field("data"), column.field("shape")
    axes = shapes.type.list_size
    sizes = _numbers(shapes.values, shapes.offset * axes, len(shapes) * axes).reshape(len(shapes), axes)
    flat = _numbers(data.values, 0, len(data.values))
    bounds = np.frombuffer(data.buffers()[1], np.int32, len(data) + 1, 4 * data.offset)
    valid = [True] * len(column) if not column.null_count else column.is_valid().to_pylist()
    return [flat[bounds[i] : bounds[i + 1]].reshape(sizes[i]) if valid[i] else None for i in range(len(column))]


def _numbers(values: pa.Array, start: int, length: int) -> npt.NDArray[Any]:
    kind = str(values.type)  # not by to_pandas_dtype, for which some versions of pyarrow import pandas
    dtype = np.dtype({"halffloat": "float16", "float": "float32", "double": "float64"}.get(kind, kind))
    buffer = values.buffers()[1]
    if buffer is None or not length:
        return np.empty(0, dtype)
    return np.frombuffer(buffer, dtype, length, (values.offset + start) * dtype.itemsize)
