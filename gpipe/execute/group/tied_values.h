// Tied values: a weight that a layer on another rank owns is brought from there at the beginning of each step.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "gpipe/model/tie.h"

namespace gpipe {

class Peers;

// Thread-compatible.
class TiedValues {
 public:
  // `worker_of_layer` by layer. REQUIRES: `ties` and `peers` outlive it.
  TiedValues(const std::vector<Tie>& ties, const std::vector<int>& worker_of_layer, Peers& peers);
  ~TiedValues();
  TiedValues(const TiedValues&) = delete;
  TiedValues& operator=(const TiedValues&) = delete;

  // Called by all ranks. Throws as a flow's ends do, and InvalidArgument if the weights do not fit together.
  void bring();

 private:
  struct Way;
  const std::vector<Tie>& ties_;
  std::vector<std::unique_ptr<Way>> ways_;  // those that begin or end at this rank
  std::int64_t number_ = 0;                 // of the step
};

}  // namespace gpipe
