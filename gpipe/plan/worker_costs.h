// Worker costs: how fast each worker is, what it can hold, and the link to the next one; and the file that says so.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gpipe {

struct LinkCosts {
  double latency_seconds = 0;
  double bytes_per_second = std::numeric_limits<double>::infinity();
  double transfer_seconds(std::int64_t bytes) const { return static_cast<double>(bytes) / bytes_per_second; }
};

inline bool operator==(const LinkCosts& a, const LinkCosts& b) {
  return a.latency_seconds == b.latency_seconds && a.bytes_per_second == b.bytes_per_second;
}

struct WorkerCosts {
  double speed = 1;                                // 1 = as profiled
  std::optional<std::int64_t> memory_limit_bytes;  // absent = as all workers
  std::optional<LinkCosts> link_to_next;           // and back; absent = as all links; of the last worker: not used
};

inline bool operator==(const WorkerCosts& a, const WorkerCosts& b) {
  return a.speed == b.speed && a.memory_limit_bytes == b.memory_limit_bytes && a.link_to_next == b.link_to_next;
}

// A limit that nothing exceeds: bytes are added up to at most as many.
constexpr std::int64_t kNoMemoryLimit = std::numeric_limits<std::int64_t>::max();

// Workers that differ in speed only.
std::vector<WorkerCosts> workers_of_speed(const std::vector<double>& speeds);

// What a worker has; an empty list is one of workers that say nothing. REQUIRES: the worker is in a list with entries.
double speed_of(const std::vector<WorkerCosts>& workers, int worker);
// kNoMemoryLimit if there is none.
std::int64_t memory_limit_of(const std::vector<WorkerCosts>& workers, const std::optional<std::int64_t>& for_all,
                             int worker);

// What a message between two workers passes through, in either direction. If no worker says what its link is, that is
// `for_all`, whichever workers they are. Otherwise it crosses all links between them: their latencies add up, and it is
// as slow as the slowest of them. Nothing on one and the same worker.
LinkCosts link_between(const std::vector<WorkerCosts>& workers, const LinkCosts& for_all, int a, int b);

// What the stages have: the speed of their workers, equal parts of their memory, the links to the workers of the next
// stages. Empty if `workers` is.
std::vector<WorkerCosts> workers_by_stage(const std::vector<WorkerCosts>& workers, const LinkCosts& for_all,
                                          const std::vector<int>& worker_of_stage);

// Throws InvalidArgument unless there are none or `expected` of them (`what`: workers or stages), and their numbers are
// in range.
void check_workers(const std::vector<WorkerCosts>& workers, int expected, const char* what);
// `name` is how the message calls it.
void check_link(const std::string& name, const LinkCosts& link);

// Reads a file such as
//
//   {"workers": [
//     {"speed": 1.0, "memory": "16GiB", "link": {"latency": 1e-5, "bandwidth": "10GiB"}},
//     {"speed": 0.5, "memory": 8589934592}
//   ]}
//
// "link" is the one to the next worker, so that the last has none. Fields that are absent are those of all workers, or
// of a link that says one thing only, of `for_all`. Throws ParseError for anything else, whatever bytes it is made of,
// naming the line, the column and the reason.
std::vector<WorkerCosts> parse_workers(std::string_view json, const LinkCosts& for_all = {});

// One line a worker. Everything comes back from `parse_workers` without `for_all`, doubles bit for bit; a link of the
// last worker is left out.
std::string to_json(const std::vector<WorkerCosts>& workers);

}  // namespace gpipe
