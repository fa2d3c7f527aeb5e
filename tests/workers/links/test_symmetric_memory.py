"""The interface of torch that peer memory stands on, as far as a machine without GPUs shows it."""

import inspect
import re

import pytest
import torch
import torch.distributed._symmetric_memory as symmetric
from torch._C._distributed_c10d import _SymmetricMemory

from workers.contract.process import NO_MULTICAST
from workers.links.symmetric_memory import SymmetricMemory, has_symmetric_memory
from workers.links.transport import SymmetricMemoryError


def test_torch_has_the_names_that_are_used() -> None:
    assert has_symmetric_memory()
    assert {"dtype", "device"} <= inspect.signature(symmetric.empty).parameters.keys()
    assert [*inspect.signature(symmetric.rendezvous).parameters] == ["tensor", "group"]
    # A method of C++: its docstring begins with its signature.
    buffer = inspect.getdoc(_SymmetricMemory.get_buffer) or ""
    assert re.findall(r"(\w+): ", buffer)[:4] == ["self", "rank", "sizes", "dtype"]


def test_a_torch_without_them_has_no_symmetric_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(symmetric, "rendezvous")
    assert not has_symmetric_memory()


@pytest.mark.parametrize("name", NO_MULTICAST)
@pytest.mark.parametrize("value", [None, "2", ""])
def test_nothing_is_shared_where_multicast_is_not_switched_off(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str | None
) -> None:
    monkeypatch.delenv(name)
    if value is not None:
        monkeypatch.setenv(name, value)
    with pytest.raises(SymmetricMemoryError, match=f"{name} is not {NO_MULTICAST[name]}"):
        SymmetricMemory(4096, torch.device("cpu"))
