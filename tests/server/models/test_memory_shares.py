"""Engines that share devices: what each gets, and what cannot be."""

import pytest

from server.models.served_models import SharesError, Tenant, divide


def on(first: int, stages: int = 1, share: float | None = None) -> Tenant:
    return Tenant(devices=tuple(f"cuda:{n}" for n in range(first, first + stages)), share=share)


CPU = Tenant(devices=())


@pytest.mark.parametrize(
    ("tenants", "shares"),
    [
        ([], []),
        ([on(0)], [0.9]),
        ([CPU, CPU], [0.9, 0.9]),
        ([on(0), CPU, on(1)], [0.9, 0.9, 0.9]),
        ([on(0), on(0), on(0)], [0.3, 0.3, 0.3]),
        ([on(0, share=0.5), on(0), on(0)], [0.5, 0.2, 0.2]),
        ([on(0, share=0.7), on(0, share=0.3)], [0.7, 0.3]),
        ([on(0, share=0.1), on(0, share=0.2), on(0, share=0.7)], [0.1, 0.2, 0.7]),
        # Two stages, of which one has a neighbour: both are as large as it leaves room for.
        ([on(0, 2), on(1)], [0.45, 0.45]),
        ([on(0, 2), on(1, share=0.6), on(0)], [0.3, 0.6, 0.45]),
    ],
    ids=str,
)
def test_shares(tenants: list[Tenant], shares: list[float]) -> None:
    assert divide(tenants, 0.9) == pytest.approx(shares)


@pytest.mark.parametrize(
    ("tenants", "message", "culprits"),
    [
        ([on(0, share=0.7), on(1), on(0, share=0.4)], "1.1 of cuda:0, more than all", [0, 2]),
        ([on(3, 2, share=0.7), on(4, share=0.7)], "1.4 of cuda:4, more than all of it", [0, 1]),
        ([on(0), on(0, share=0.9)], "0.9 of cuda:0, nothing of 0.9 is left", [1]),
    ],
)
def test_what_does_not_fit(tenants: list[Tenant], message: str, culprits: list[int]) -> None:
    with pytest.raises(SharesError, match=message) as caught:
        divide(tenants, 0.9)
    assert caught.value.tenants == culprits
