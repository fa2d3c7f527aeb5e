"""Numbers that were chosen by measuring, all in one place.

Each group names the GPU and the commit on which it was measured; benchmarks/RESULTS.md has the
figures. On another GPU they are still correct, but perhaps not the fastest.
"""

from typing import NamedTuple

# CUDA graphs. H200, 8B Llama, a531c42 (decode steps), 8773772 (prompts), 8ad2c40 (mixed steps).

DECODE_GRAPH_ROWS = (1, 2, 3, 4, 6, 8, 12, *range(16, 64, 8), *range(64, 513, 16))
"""Rows of the decode steps that are captured, every number while a graph is cheap."""

DECODE_GRAPH_STRIDE = 64
"""Rows between one captured decode step and the next beyond those above."""

GROUPED_GRAPH_ROWS = (16, 32)
"""Rows of the decode steps that are captured with shared prefixes, besides every stride."""

PROMPT_GRAPH_TOKENS = (*range(16, 641, 16), *range(672, 1025, 32))
"""Tokens of the captured steps with prompts. Larger steps take longer than their launches."""

MIXED_GRAPH_DECODE_ROWS, MIXED_GRAPH_CHUNKS = 32, 8
"""Most rows of a step with prompts whose attention is captured too, as under a light load."""

MIXED_GRAPH_MAX_CONTEXT = 4096
"""Most tokens of a decode row's context in such a step. One that is longer, read by 8 programs
instead of by all, adds a millisecond to a step: the piecewise graph is then faster."""

TEXT_GRAPH_RUNGS, TEXT_GRAPH_LEAST_STRIDE = 8, 32
"""Captured steps of texts between one power of two and the next, and the fewest tokens between one
and the next: padding is at most an eighth of a larger step. Not measured yet, nor are those below.
"""

LONG_TEXTS, LONG_TEXTS_WIDE_HEADS = 1024, 256
"""The mean length from which FlashAttention is faster than the own kernel, with heads of up to 64
dimensions and of more. For 16,384 tokens and 12 heads of 64 it takes 93 us in place of 85 in texts
of 512, 139 in place of 151 in those of 1,024. H200."""

TEXT_GRAPH_MEAN_LENS = {4: 1, 32: 1024, 256: 4096, LONG_TEXTS: 4096}
"""By the least mean length of the texts for which a captured step has rows: the fewest tokens of
the step. A row that is not used costs FlashAttention a block of threads for each head, and where
one token of a row is pooled, the last layer a token."""

LAUNCHES_MATTER = 8
"""A step of texts that keeps the device busy for so many times as long as the host launches it
needs no graph: padding costs more. Below, a core that launches is missed by others."""

CLEARLY_FASTER = 0.95
"""A graph is dropped only if a larger one runs in under this fraction of its time. The margin
absorbs noise. d02e0f6."""

# Attention. H200, a531c42; skewed contexts 26615e5, number of splits 6f9dff8.

DECODE_PROGRAMS_PER_PROCESSOR = 3
"""Programs a streaming multiprocessor that split contexts aim at. From one program a processor on,
merging costs more than splitting gains."""

DECODE_TILE_BYTES = 16384
"""Bytes of keys that a decode program reads at once, for one KV head."""

FP8_DECODE_NUMBERS_A_WARP = 4096
"""Numbers of keys in FP8 that each warp of a decode program reads at once."""

FP8_DECODE_WARPS = ((8, 1), (3, 2), (0, 4))
"""Warps of such a program, by the least number of programs that a processor has: 16 take 52 us with
one, 60 with two, 68 with four. 2.9, of an earlier form of the kernel, took 57 with four and 69
with two, and with half as many numbers a warp up to twice as long (H200)."""

DECODE_MANY_SPLITS = 16
"""With more splits than this, each has few tiles, and a shorter pipeline fills sooner."""

SKEWED_MIN_ROWS = 16
"""With this many decode rows or fewer, contexts are split anyway, to fill the GPU."""

SKEWED_MIN_CONTEXT = 4096
"""Tokens that one program reads while the other kernels of the step hardly slow down."""

SKEWED_SHARE = 16
"""A context is long if it has more than one in this many of all the step's tokens."""

SKEWED_SPLIT_TOKENS, SKEWED_MAX_SPLITS = 1024, 16
"""Tokens a split of a skewed context, and the most splits."""


class PrefillTile(NamedTuple):
    """Packed queries a program and keys a tile (powers of two, at least 16), warps, stages."""

    query_tile: int
    key_tile: int
    warps: int
    stages: int


PREFILL_TILE = PrefillTile(128, 64, warps=8, stages=3)
PREFILL_TILE_LARGE_HEADS = PrefillTile(64, 32, warps=4, stages=2)
"""For attention heads of more than 128 dimensions."""

PREFILL_TILE_LARGEST_HEADS = PrefillTile(32, 32, warps=8, stages=2)
"""For more than 256 dimensions: the largest tile whose sums fit in registers, as compiled for sm_90
and heads of 512. Not timed."""

PREFILL_TILE_FLOAT32 = PrefillTile(16, 16, warps=4, stages=2)
"""No tensor core multiplies in float32: what a thread holds must fit in its registers."""

TEXT_TILE = PrefillTile(128, 32, warps=4, stages=3)
TEXT_TILE_WIDE_HEADS = PrefillTile(64, 32, warps=4, stages=3)
"""For whole texts, with heads of up to 64 dimensions and of more: of 11 tiles the best, or nearly,
for 16,384 tokens in texts of 12 to 512 and 12 heads of 32 or 64, or 16 of 128. H200."""

TEXT_TILE_TOKENS = 128
"""Queries of whole texts that share a tile: those of the largest tile above."""

SHARED_PREFIX_TILE = PrefillTile(64, 64, warps=4, stages=3)
"""For a prefix that rows share: 16 rows of 4 query heads a KV head fill it. Larger ones are slower
even for 256 members. H200, 64 x 16, 16 x 64 and 4 x 256 rows behind 1,920 tokens."""

PREFIX_PROGRAMS_PER_PROCESSOR = 2
"""Programs a streaming multiprocessor that attention over shared prefixes aims at."""

PREFIX_MIN_PART = 256
"""Tokens of a prefix below which it is not divided further."""

PREFIX_MAX_PARTS, PREFIX_PART_TOKENS = 16, 4096
"""The most parts of a prefix, and the most tokens times parts. Each part of a token has a result in
memory (16 KiB for 32 heads of 128 dimensions)."""

PREFIX_MIN_TOKENS = 256
"""A shorter prefix is read from the L2 cache for every row but the first. cd394d1."""

PREFIX_MIN_SAVED, PREFIX_MOST_COUNTED = 1 << 14, 4096
"""Tokens of keys and values, each for one tile of queries. With more it is faster to attend
prefixes apart. At most so many tokens of a prefix count, because a long context is split among many
programs anyway. cd394d1."""

FP8_SCRATCH_TOKENS = 1 << 16
"""Tokens of the copy of contexts in 16 bits over which FlashAttention attends (256 MiB for 8 KV
heads of 128 dimensions)."""

# Attention on a CPU. Two cores of an EPYC 9004 (AVX-512).

CPU_PREFIX_MIN_GAIN = 1 << 20
"""Least gain a thread for which a shared prefix is attended apart.

The gain is the numbers of keys that its rows are spared, less those of their queries, whose results
are merged. In bfloat16 with 2 to 20 rows, one thread breaks even at an eighth of it. Two do at a
quarter with heads of 4/2 x 64, and at all of it with 32/8 x 128."""

# Linear layers. H200, layers of an 8B Llama; few rows a531c42 and 70cf940, gated product 2eb0ea7.


class SkinnyTile(NamedTuple):
    """Outputs a program, inputs an iteration, warps, and pipeline stages. `ahead` is how many bytes
    of each output's weights are fetched into the L2 cache before the rows arrive (several rows
    only)."""

    outputs: int
    inputs: int
    warps: int
    stages: int
    ahead: int = 0


SKINNY_MAX_ROWS = 32
"""With more rows, reading the weight no longer bounds the product, and cuBLAS is as good."""

SKINNY_MAX_NORMED_ROWS = 16
"""Likewise for a product after a norm."""

SKINNY_ONE_ROW = SkinnyTile(8, 1024, 4, 1)
SKINNY_ONE_ROW_FEW_OUTPUTS = SkinnyTile(2, 1024, 4, 1)
SKINNY_ONE_ROW_GATED = SkinnyTile(8, 512, 4, 1)
SKINNY_ONE_ROW_GATED_FEW_OUTPUTS = SkinnyTile(4, 512, 4, 1)
SKINNY_FEW_OUTPUTS, SKINNY_FEW_GATED_OUTPUTS = 4096, 12288
"""With fewer outputs, a program takes fewer of them, so that there are enough programs. H200,
layers of Gemma-3-4B, 0aae3b6."""

SKINNY_FLOAT32 = SkinnyTile(32, 64, 4, 4)
"""A larger tile does not fit in shared memory."""

SKINNY_16_ROWS_GATED = SkinnyTile(32, 256, 4, 3)
SKINNY_32_ROWS_GATED = SkinnyTile(64, 128, 4, 3)
SKINNY_16_ROWS_WIDE = SkinnyTile(128, 128, 8, 4, ahead=512)
SKINNY_32_ROWS_WIDE = SkinnyTile(64, 128, 4, 3)
SKINNY_16_ROWS = SkinnyTile(64, 128, 4, 8, ahead=512)
SKINNY_32_ROWS = SkinnyTile(64, 128, 4, 8)

SKINNY_WIDE_OUTPUTS = 1 << 14
"""A layer of more outputs takes the wide tiles."""


class GatedTile(NamedTuple):
    """Rows and outputs a tile, inputs an iteration, tiles of rows a band, warps and stages."""

    rows: int
    outputs: int
    inputs: int
    band: int
    warps: int
    stages: int


GATED_LOW_TILE = GatedTile(64, 128, 64, 16, 4, 4)
GATED_HIGH_TILE = GatedTile(128, 128, 64, 16, 8, 3)
"""A few hundred rows make too few high tiles to keep all processors busy to the end."""

GATED_MEASURED_ROWS = range(400, 1025, 16)
"""The numbers of rows at which a worker measures the ways to a gated product when it starts. With
fewer rows cuBLAS always wins, with more the high tile does."""

# Linear layers in FP8. H200, layers of an 8B Llama, 184f199f.

FP8_SKINNY_MAX_ROWS = 64
"""With more rows, reading the weight no longer bounds the product."""

SKINNY_FP8 = SkinnyTile(64, 256, 4, 6, ahead=512)
SKINNY_FP8_GATED = SkinnyTile(64, 256, 4, 4)
SKINNY_FP8_BLOCKS = SkinnyTile(64, 128, 4, 6)

FP8_MEASURED_ROWS = (128, 192, 256, 384, 512, 1024, 2048, 4096)
"""The numbers of rows at which a worker measures the ways to an FP8 product when it starts. Others
go the way of the next larger, or of the last."""

FP8_TILES = (
    GatedTile(64, 64, 128, 16, 4, 6),
    GatedTile(64, 128, 128, 16, 4, 5),
    GatedTile(128, 128, 128, 16, 4, 4),
    GatedTile(128, 256, 128, 16, 8, 3),
)
"""Tiles of the own kernel, with both halves of a gated layer among the outputs."""

FP8_BLOCKS_TILE = GatedTile(64, 128, 128, 16, 4, 5)
"""Where a weight has scales of blocks, and cuBLAS cannot multiply by it."""

# Mixtures of experts. H200, 00f03a18; of few rows e6c1cc92.


class GroupedTile(NamedTuple):
    """Rows and outputs a tile, a gate's among them, inputs an iteration, warps and stages."""

    rows: int
    outputs: int
    inputs: int
    warps: int
    stages: int


GROUPED_MEASURED_PAIRS = (8, 512, 2048, 8192, 65536)
"""The numbers of tokens times experts of each at which a worker measures the ways to the experts'
products when it starts: 1 to 8,192 tokens of 8 experts. Others go the way of the next larger, or of
the last."""

GROUPED_FLOAT32_TILE = GroupedTile(16, 32, 32, 4, 2)
"""What a thread holds must fit in its registers."""

GROUPED_TILES = (
    GroupedTile(16, 64, 128, 4, 3),
    GroupedTile(16, 128, 128, 8, 5),
    GroupedTile(32, 128, 128, 4, 4),
    GroupedTile(64, 128, 64, 4, 4),
    GroupedTile(64, 128, 128, 4, 3),
    GroupedTile(64, 256, 128, 8, 3),
    GroupedTile(128, 128, 128, 4, 3),
    GroupedTile(128, 256, 64, 8, 3),
    GroupedTile(128, 128, 64, 8, 4),
)

ACTIVATION_MUL_BLOCK = 1024
"""Outputs a program: with 4 warps, one 16-byte access a thread and input in half precision."""

# The LM head. H200, 26615e5.

WARM_LM_HEAD_ROWS = 64
"""cuBLAS has separate kernels for each number of rows up to this one. Warm-up loads them."""

# Memory. H200, a531c42.

OUTSIDE_ALLOCATOR_BYTES = 1 << 30
"""Bytes of the CUDA context, loaded kernels and library workspaces. Fixed, because what a device
reports includes other processes."""
