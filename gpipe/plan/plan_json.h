// A plan as JSON, both ways.
#pragma once

#include <string>
#include <string_view>

#include "gpipe/plan/plan.h"

namespace gpipe {

// One line a stage, a worker and a skip. Everything comes back from `parse_plan`, doubles bit for bit.
//
//   {
//     "schedule": "1f1b",
//     "chunks": 1,
//     "num_micro_batches": 8,
//     "recompute": "never",
//     "predicted_step_seconds": 12.5,
//     "link_latency_seconds": 0.0,
//     "stages": [
//       {"layers":3,"seconds":1.5,"bytes":4096, ...},
//       {"layers":1,"seconds":1.0,"bytes":2048, ...}
//     ],
//     "workers": [                               and "speed", "memory_limit_bytes", "link_latency_seconds" and
//       {"predicted_peak_bytes":4096},             "link_bytes_per_second" of workers that are not all alike
//       {"predicted_peak_bytes":2048}
//     ],
//     "skips": []
//   }
std::string to_json(const Plan& plan);

// Throws ParseError for anything else, whatever bytes it is made of, naming the line, the column and the reason; also
// for a schedule that does not exist, a number of chunks it does not have, and stages that are no multiple of the
// chunks.
Plan parse_plan(std::string_view json);

}  // namespace gpipe
