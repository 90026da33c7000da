// The schedules of the literature, as values. K workers, M micro-batches, v chunks (stages) a worker.
//
// All of them run the forwards, the backwards and the weight gradients of every stage in ascending micro-batch order,
// so gradients accumulate in one order whatever the schedule. Each throws InvalidArgument for a count below one or for
// more than kMaxActions actions. The pictures show F as a digit, B as two, for K = 4, M = 4 unless they say otherwise.
#pragma once

#include <cstdint>

#include "gpipe/schedule/schedule.h"

namespace gpipe {

// A generator refuses to make more actions than this: 1.5 GiB of them.
constexpr std::int64_t kMaxActions = std::int64_t{1} << 27;

// Nor more stages; a parser refuses them, too.
constexpr int kMaxStages = 1 << 16;

namespace schedules {

enum class BackwardOrder { kAscending, kDescending };

// Forward of everything, then backward of everything (Huang et al., 2019). kDescending is the paper's own order; its
// gradients accumulate from the last micro-batch to the first, which `validate` marks as not canonical.
//
//   0 1 2 3 . . . . . . 0 0 1 1 2 2 3 3
//   . 0 1 2 3 . . . 0 0 1 1 2 2 3 3 . .
Schedule gpipe(int num_workers, int num_micro_batches, BackwardOrder order = BackwardOrder::kAscending);

// One forward, one backward (PipeDream-flush): worker s holds at most K - s micro-batches.
//
//   0 1 . . 0 0 2 1 1 3 2 2 . 3 3      K = 2
//   . 0 0 0 1 1 1 2 2 2 3 3 3 . .
Schedule one_f_one_b(int num_workers, int num_micro_batches);

// 1F1B over a loop of K·v stages, stage s on worker s mod K (Megatron-LM). Takes any M, not only multiples of K.
Schedule interleaved(int num_workers, int num_micro_batches, int chunks);

// Hanayo (Liu et al., 2023): an even number of chunks, in waves that go down the workers and up again, so that nothing
// is sent where a wave turns. Interleaved's bubble for as many chunks, and less where K does not divide M. Throws
// InvalidArgument for an odd number of chunks, too. Here the way up is in letters:
//
//   0 1 2 a a a b b b c c c 3 0 0 . 1 1 d d d 2 2 . . 3 3      K = 2, two chunks
//   . 0 a 1 b 2 a a c 0 0 b b 3 1 1 d c c 2 2 d d 3 3 . .
Schedule hanayo(int num_workers, int num_micro_batches, int chunks);

// GPipe over a loop of K·v stages, one chunk after the other (breadth-first pipeline parallelism).
Schedule looped_bfs(int num_workers, int num_micro_batches, int chunks);

// 1F1B with B split into I and W, and W put off to fill the bubble (zero bubble pipeline parallelism, Qi et al.): a
// third of 1F1B's bubble at its memory.
Schedule zb_h1(int num_workers, int num_micro_batches);

// The same with twice the micro-batches in flight: no worker idles between its first and its last action.
Schedule zb_h2(int num_workers, int num_micro_batches);

// Two chunks a worker in a V, stages w and 2K-1-w on worker w: no bubble after the start, at 1F1B's memory.
Schedule zb_v(int num_workers, int num_micro_batches);

// The V with half (v_half) and a third (v_min) of 1F1B's memory, plus at most one micro-batch (pipeline parallelism
// with controllable memory, Qi et al.). They have half and two thirds of its bubble. Where K mod 3 is 2, from K = 5 on,
// v_min holds up to (K + 4) / 3 micro-batches.
Schedule v_half(int num_workers, int num_micro_batches);
Schedule v_min(int num_workers, int num_micro_batches);

// DualPipeV (DeepSeek's DualPipe, cut in half): the placement of ZB-V, with whole backwards in the middle, each beside
// the forward of another micro-batch, and split ones at both ends. Its forwards and backwards can hide each other's
// communication where a device runs both at once; here they run one after the other.
Schedule dualpipe_v(int num_workers, int num_micro_batches);

// Forwards only, for evaluation.
Schedule forward_only(int num_workers, int num_micro_batches);

}  // namespace schedules
}  // namespace gpipe
