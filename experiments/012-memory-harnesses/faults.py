# SPDX-License-Identifier: Apache-2.0
"""Twenty faults in memory code. Each is one replacement of text that its file has exactly once."""
import dataclasses


@dataclasses.dataclass(frozen=True)
class Fault:
    name: str
    path: str
    before: str
    after: str


PAGER, MEMORY, SCHED = "src/pager/", "src/shim/memory/", "src/sched/"

FAULTS = [
    # The pager: what is evicted comes back.
    Fault("slots of a chunk that stays are lost", PAGER + "eviction.cc",
          "    state_.host.give(block.slot);\n    block = Block{};\n  }\n  state_.unclaim",
          "    block = Block{};\n  }\n  state_.unclaim"),
    Fault("a copy begins over a slot that still counts", PAGER + "eviction.cc",
          "      // From here on the slot holds neither the old content nor yet the new one.\n"
          "      chunk.blocks[i].kind = Block::Kind::kNone;\n", ""),
    Fault("a chunk leaves although its seat was let in again", PAGER + "eviction.cc",
          "&& !doomed && !undrained_", "&& !doomed"),
    Fault("blocks of one word are restored as a row of the first one's", PAGER + "restoration.cc",
          " && chunk.blocks[i].word == block.word", ""),
    Fault("blocks are restored as a row wherever their slots are", PAGER + "restoration.cc",
          "chunk.blocks[i].kind == Block::Kind::kCopied &&\n"
          "             chunk.blocks[i - 1].slot.is_followed_by(chunk.blocks[i].slot))",
          "chunk.blocks[i].kind == Block::Kind::kCopied)"),
    Fault("a failed restoration counts as done", PAGER + "restoration.cc",
          "seen == GpuState::kDone && !entry.failing", "seen == GpuState::kDone"),
    Fault("a slot is lent twice", PAGER + "copier/host_slots.cc",
          "i < chunk->used.size() && !chunk->used[i] && taken < count", "i < chunk->used.size() && taken < count"),
    # Pools: memory that is allocated again is not in use.
    Fault("a freed block is anybody's at once", MEMORY + "pool_blocks.cc",
          "!found.is_pending() && (pool.may_take_done()", "(pool.may_take_done()"),
    Fault("what is left of a divided block has no fences", MEMORY + "pool_blocks.cc",
          "rest.fence = std::exchange(taken.fence, {});", "drop_fence(taken);"),
    Fault("of two fences recorded at once the first one counts", MEMORY + "pool_blocks.cc",
          "early.fence.tick < late.fence.began", "early.fence.tick < late.fence.tick"),
    # A seat's bounds.
    Fault("a wish leaves out what the pager does not have", MEMORY + "device_memory.cc",
          "pager.bounds().committed() + beside + outside + kept_back",
          "pager.bounds().committed() + beside + kept_back"),
    Fault("memory claimed from other programs is counted twice", MEMORY + "device_memory.cc",
          "  pager.bounds().give(claimed);\n", ""),
    Fault("a refused thread does not wait for frees", MEMORY + "remedies.h",
          "kAskForCommitment, kAwaitFrees,", "kAskForCommitment,"),
    Fault("a connection's sequence outlives it", MEMORY + "device_memory.cc",
          "  room_.sequence = 0;\n", ""),
    # Managed memory.
    Fault("managed memory that is freed is sent away", MEMORY + "managed_memory.cc",
          "if (is_going || begin >= end) {", "if (begin >= end) {"),
    Fault("freed managed memory counts as away", MEMORY + "managed_memory.cc",
          "    if (piece) away_bytes_.fetch_sub(next - at, std::memory_order_relaxed);\n", ""),
    # The daemon's planner.
    Fault("a seat counts for what it has, not for what it was told", SCHED + "residency_plan.cc",
          "  for (const Bound& bound : seat.bounds) most = std::max(most, bound.room);\n", ""),
    Fault("a bound is raised beyond what is free", SCHED + "residency_plan.cc",
          "const std::uint64_t room = std::min(goal, counted + free);", "const std::uint64_t room = goal;"),
    Fault("host memory is promised to the seats of each GPU", SCHED + "residency_commitments.cc",
          "    elsewhere += minus(sum, available(other));\n", ""),
]
