#include "train/torch_failure.h"

#include <algorithm>

namespace gpipe::train {
namespace {

constexpr const char* kAllocation = "can't allocate memory: you tried to allocate ";

}  // namespace

std::string describe_torch_failure(const std::string& message) {
  std::string line = message.substr(0, message.find("\nException raised from "));
  std::replace(line.begin(), line.end(), '\n', ' ');
  const std::size_t at = line.find(kAllocation);
  if (at == std::string::npos) return line;
  // "[enforce fail at alloc_cpu.cpp:66] . DefaultCPUAllocator: can't allocate memory: …": what stands before it is
  // ours.
  const std::string before = line.substr(0, std::min(line.find("[enforce fail"), at));
  const std::size_t number = at + std::string(kAllocation).size();
  const std::string bytes = line.substr(number, line.find_first_not_of("0123456789", number) - number);
  return before + "out of memory: " + bytes +
         " bytes could not be allocated; use a smaller model, more recompute or smaller batches";
}

}  // namespace gpipe::train
