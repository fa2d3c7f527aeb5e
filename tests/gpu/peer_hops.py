"""One of two processes that send hidden states through peer memory, as two stages do.

`python -m tests.gpu.peer_hops STAGE DEVICE RENDEZVOUS HOPS`. Stage 0 sends; stage 1 compares every
byte, and answers with the counter of tokens. Stage 1 prints how many steps were wrong; then both
measure hops of some sizes, and stage 0 prints `ROWS GPU_US CPU_US` for each.
"""

import random
import sys
import time

import torch
import torch.distributed as dist

from workers.links.peer_memory import (
    PeerLayout,
    PeerReceiver,
    PeerSender,
    PeerTokens,
    SymmetricMemory,
)

HIDDEN_SIZE, MOST_ROWS, DEPTH = 4096, 8448, 5
LAYOUT = PeerLayout(DEPTH, MOST_ROWS, HIDDEN_SIZE, torch.bfloat16, num_tokens=1)
SIZES = (1, 64, 256, 2048, MOST_ROWS)
MEASURED = 200
ROWS_OF_HOPS, POOL_ROWS = 48, 1024
DELAYED, LONGEST_DELAY = 0.02, 200_000
"""Share of the hops before which a side sleeps, and cycles of the longest sleep."""
IN_STREAM = 0.5
"""Share of the hops that are copied in the stream; the others are copied beside it."""


def main() -> None:
    stage, device, rendezvous, hops = int(sys.argv[1]), *sys.argv[2:4], int(sys.argv[4])
    torch.cuda.set_device(device)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=stage, world_size=2)
    world = dist.group.WORLD
    assert world is not None, "joined"
    memory = SymmetricMemory(LAYOUT.nbytes, torch.device(device), world)
    tokens = PeerTokens(LAYOUT, memory)
    if stage == 0:
        sender = PeerSender(LAYOUT, memory, 1)
        send_all(sender, tokens, hops)
        print(*measured(sender, tokens, hops), sep="\n", flush=True)
    else:
        receiver = PeerReceiver(LAYOUT, memory, 1)
        print(wrong_steps(receiver, tokens, hops), flush=True)
        answer_all(receiver, tokens, hops)
    torch.cuda.synchronize()
    dist.barrier()


def states(pool: torch.Tensor, step: int) -> torch.Tensor:
    """What is sent with a step: another number of rows, and other rows, each time."""
    draw = random.Random(step)
    first, rows = draw.randrange(POOL_ROWS - ROWS_OF_HOPS), draw.randint(1, ROWS_OF_HOPS)
    return pool[first : first + rows]


def random_pool() -> torch.Tensor:
    """int16 bits as bfloat16, the same in both processes: any bits at all, NaN too."""
    bits = torch.Generator().manual_seed(5)
    numbers = torch.randint(-(1 << 15), 1 << 15, (POOL_ROWS, HIDDEN_SIZE), generator=bits)
    return numbers.to(torch.int16).cuda().view(torch.bfloat16)


def sleep_now_and_then(draw: random.Random) -> None:
    """On the device, so that neither side is always the one that waits."""
    if draw.random() < DELAYED:
        torch.cuda._sleep(draw.randrange(LONGEST_DELAY))


def send_all(sender: PeerSender, tokens: PeerTokens, hops: int) -> None:
    """As far ahead of the answers as steps may be in flight."""
    pool, draw = random_pool(), random.Random(1)
    for step in range(hops):
        tokens.wait_for(step - DEPTH)
        sleep_now_and_then(draw)
        sender.send(step, states(pool, step), reused=draw.random() < IN_STREAM)
    tokens.wait_for(hops - 1)


def wrong_steps(receiver: PeerReceiver, tokens: PeerTokens, hops: int) -> int:
    pool, draw = random_pool(), random.Random(2)
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    for step in range(hops):
        expected = states(pool, step)
        sleep_now_and_then(draw)
        received = receiver.receive(step, len(expected))
        wrong += (received.view(torch.int16) != expected.view(torch.int16)).any()
        received.zero_()  # a slot that is read once more, or too early, is wrong
        tokens.announce(step)
    return int(wrong)


def measured(sender: PeerSender, tokens: PeerTokens, first: int) -> list[str]:
    """Times of a hop there and back: half is one hop."""
    lines: list[str] = []
    for number, rows in enumerate(SIZES):
        hidden = torch.zeros(rows, HIDDEN_SIZE, dtype=torch.bfloat16, device="cuda")
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(200_000_000)  # all is queued before it begins
        begun = time.perf_counter()
        start.record()
        for step in range(MEASURED):
            sender.send(first + number * MEASURED + step, hidden, reused=True)
            tokens.wait_for(first + number * MEASURED + step)
        end.record()
        cpu = time.perf_counter() - begun
        end.synchronize()
        gpu = start.elapsed_time(end) * 1e-3
        lines.append(f"{rows} {gpu / MEASURED * 1e6:.1f} {cpu / MEASURED * 1e6:.1f}")
    return lines


def answer_all(receiver: PeerReceiver, tokens: PeerTokens, first: int) -> None:
    for number, rows in enumerate(SIZES):
        for step in range(MEASURED):
            receiver.receive(first + number * MEASURED + step, rows)
            tokens.announce(first + number * MEASURED + step)


if __name__ == "__main__":
    with torch.inference_mode():
        main()
