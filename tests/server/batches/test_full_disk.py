"""A file system without room. A limit on the size of files fails writes where a full disk does."""

from pathlib import Path

import pytest

from server.batches.result_log import NoRoomError
from tests.server.batches.requests_file import Echo, job_of, numbered, outputs, write
from tests.server.batches.state.full_disk import no_file_grows

LINES = 100


async def limited(source: Path, most: int) -> str:
    """What a job says whose files may have `most` bytes."""
    job = job_of(source)
    await job.open(resume=True)
    try:
        with no_file_grows(most):
            await job.run(Echo())
            job.assemble(source.with_name("out"))
    except NoRoomError as error:
        return str(error)
    finally:
        job.close()
    raise AssertionError("a file without room is refused")


async def rest_of(source: Path) -> int:
    """Go on with room; how many lines were left."""
    job, backend = job_of(source), Echo()
    await job.open(resume=True)
    await job.run(backend)
    job.assemble(source.with_name("out"))
    job.remove()
    assert len(outputs(source.with_name("out"))) == LINES
    return len(backend.asked)


@pytest.mark.parametrize("most", [1, 700, 5_000])
async def test_a_log_without_room_says_what_it_needs(tmp_path: Path, most: int) -> None:
    source = write(tmp_path, *numbered(LINES, "x" * 100))
    said = await limited(source, most)
    assert said.startswith(f"{tmp_path / 'log'}: File too large: about ")
    needed = int(said.split("about ")[1].split(" more bytes")[0].replace(",", ""))
    assert 20_000 < needed < 60_000
    assert await rest_of(source) == LINES


async def test_an_output_without_room_leaves_no_part_of_it(tmp_path: Path) -> None:
    source = write(tmp_path, *numbered(LINES, "x" * 100))
    job = job_of(source)
    await job.open(resume=False)
    await job.run(Echo())
    job.close()
    (tmp_path / "out").write_text("of another time\n")
    said = await limited(source, 5_000)
    assert said.startswith(f"{tmp_path / 'out'}.new: File too large: about ")
    assert (tmp_path / "out").read_text() == "of another time\n"
    assert not (tmp_path / "out.new").exists()
    assert await rest_of(source) == 0
