"""A device without hardware: it computes on the CPU and counts what a real one would have to do.

Tensors on it claim another device than the CPU, so that a program takes the path it takes on an
accelerator. Every operation on them counts as a launch, unless it only makes a view or reserves
memory. Whatever would make the host wait for the device counts as a wait: reading a number,
comparing tensors, indices whose number depends on values, and copies between host and device other
than `non_blocking` ones. (Those to a CUDA device do not wait only from pinned memory, which the
package uses there.)

    use()
    move(module)
    with Count() as count:
        module(torch.arange(3.0)).sum().backward()
    print(count.launches.total(), count.waits)
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode

NAME = "simulated"
READS = ("_local_scalar_dense", "equal", "is_nonzero", "nonzero", "masked_select", "item")
VIEWS = """
    _reshape_alias _unsafe_view alias as_strided detach diagonal expand lift_fresh permute reshape
    select slice split split_with_sizes squeeze t transpose unbind unfold unsqueeze view
"""
ALLOCATIONS = "empty empty_like empty_strided new_empty new_empty_strided"
NO_LAUNCH = frozenset((VIEWS + ALLOCATIONS).split())


class _Module(backend_registration._DummyBackendModule):
    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]


def use() -> torch.device:
    """Register the device, once per process, and return it."""
    if torch._C._get_privateuse1_backend_name() != NAME:
        backend_registration._setup_privateuseone_for_python_backend(
            rename=NAME, backend_module=_Module()
        )
    return torch.device(NAME, 0)


class OnDevice(Tensor):
    """A tensor on the simulated device; `contents` are its numbers on the CPU."""

    contents: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> OnDevice:
        made: OnDevice = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=use(),
        )
        made.contents = inner
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, function: Any, types: Any, arguments: Any = (), options: Any = None
    ) -> Any:
        return _run(function, arguments, options or {}, Count())

    def new_tensor(self, data: Any, dtype: torch.dtype | None = None) -> Tensor:  # type: ignore[override]
        """Create a tensor from numbers of the host: torch would allocate on a real device."""
        return torch.tensor(data, dtype=dtype or self.dtype).to(use())

    def __repr__(self) -> str:  # type: ignore[override]
        return f"OnDevice({self.contents!r})"


class Count(TorchDispatchMode):
    """Counts while it is entered, and lets tensors move between the CPU and the simulated device.

    Attributes:
        launches: number of launches of each operation.
        waits: number of times the host waits, by reason.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.launches: Counter[str] = Counter()
        self.waits: Counter[str] = Counter()

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: Any = (), options: Any = None
    ) -> Any:
        return _run(function, arguments, options or {}, self)


def move(module: nn.Module) -> None:
    """Put the parameters and buffers of a module on the simulated device."""
    for each in module.modules():
        for name, parameter in each._parameters.items():
            if parameter is not None:
                moved = OnDevice(parameter.detach().clone())
                each._parameters[name] = nn.Parameter(moved, parameter.requires_grad)
        for name, buffer in each._buffers.items():
            if buffer is not None:
                each._buffers[name] = OnDevice(buffer)


def content(tensor: Tensor) -> Tensor:
    """Return what a tensor of the simulated device contains, without counting."""
    assert isinstance(tensor, OnDevice)
    return tensor.contents


def _run(function: Any, arguments: Any, options: Any, count: Count) -> Any:
    """Run an operation on the contents, count it, and wrap its results."""
    device = options.get("device")
    leaves = pytree.tree_leaves((arguments, options))
    given = {id(leaf.contents): leaf for leaf in leaves if isinstance(leaf, OnDevice)}
    there = bool(given) if device is None else torch.device(device).type == NAME
    _count(function.overloadpacket.__name__, arguments, options, there, bool(given), count)
    plain_arguments, plain_options = pytree.tree_map(_plain, (arguments, options))
    result = function(*plain_arguments, **plain_options)

    def wrapped(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return given[id(value)] if id(value) in given else OnDevice(value)

    return pytree.tree_map(wrapped, result) if there else result


def _plain(value: Any) -> Any:
    if isinstance(value, OnDevice):
        return value.contents
    if isinstance(value, torch.device) and value.type == NAME:
        return torch.device("cpu")
    return value


def _count(
    name: str, arguments: Any, options: Any, there: bool, from_device: bool, count: Count
) -> None:
    crosses = name == "_to_copy" and there != from_device
    if name == "copy_":
        crosses = isinstance(arguments[0], OnDevice) != isinstance(arguments[1], OnDevice)
        options = {"non_blocking": len(arguments) > 2 and arguments[2]}
    if crosses and not options.get("non_blocking"):
        count.waits["to the device" if there else "to the host"] += 1
    elif from_device and name in READS:
        count.waits[name.strip("_")] += 1
    elif (there or from_device) and name not in NO_LAUNCH:
        count.launches[name] += 1
