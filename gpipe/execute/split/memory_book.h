// MemoryBook: which bytes each stage holds, if they are measured.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "gpipe/execute/cut/cut.h"
#include "gpipe/execute/values/step_result.h"
#include "gpipe/model/layer.h"
#include "gpipe/model/memory_account.h"
#include "gpipe/model/micro_batch.h"

namespace gpipe::detail {

// Thread-compatible.
class MemoryBook {
 public:
  // Without accounts: nothing is measured until `open`.
  MemoryBook() = default;
  // An account for each stage. `layers` are those that this process has.
  void open(const Cut& cut, const std::vector<ChainLayer>& layers, std::int64_t limit_bytes);
  bool is_open() const { return !stages_.empty(); }

  // The account of that stage; null if nothing is measured.
  std::shared_ptr<MemoryAccount> account(int stage) const;
  // Books parameters, gradients and buffers as they are now.
  void book_layers() const;
  // Books the optimizer's state. Throws OutOfMemoryError if a stage has no room for it; then nothing of it is booked.
  void book(torch::optim::Optimizer& optimizer);
  void reset_peaks() const;
  // The most that a step has held of what other stages sent.
  void set_input_bytes(int stage, std::int64_t bytes);

  std::vector<StageMemory> memory() const;

 private:
  struct Stage {
    std::shared_ptr<MemoryAccount> account;
    Tensors parameters;
    Tensors buffers;
    std::int64_t optimizer_bytes = 0;  // booked
    std::int64_t input_bytes = 0;      // of the last step
  };
  std::vector<Stage> stages_;
};

}  // namespace gpipe::detail
