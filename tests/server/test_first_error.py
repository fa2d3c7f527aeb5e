"""What is raised where tasks of a group fail."""

import asyncio

import pytest

from server.tasks import first_error


async def fail(error: Exception) -> None:
    raise error


async def together(*errors: Exception) -> None:
    async with asyncio.TaskGroup() as group:
        for error in errors:
            group.create_task(fail(error))


@pytest.mark.parametrize("errors", [(ValueError("a"),), (ValueError("a"), KeyError("b"))])
async def test_errors_of_the_kinds_are_raised_alone(errors: tuple[Exception, ...]) -> None:
    with pytest.raises(ValueError, match="a"), first_error(ValueError, KeyError):
        await together(*errors)


async def test_one_that_stands_deep_is_found() -> None:
    with pytest.raises(ValueError, match="deep"), first_error(ValueError):
        async with asyncio.TaskGroup() as group:
            group.create_task(together(ValueError("deep")))


async def test_among_others_the_group_stays() -> None:
    with pytest.raises(ExceptionGroup) as raised, first_error(ValueError):
        await together(ValueError("a"), OSError("b"))
    assert len(raised.value.exceptions) == 2


async def test_without_an_error_nothing_happens() -> None:
    with first_error(ValueError):
        await together()
