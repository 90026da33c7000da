// Packet: one message of a flow.
#pragma once

#include <c10/core/Event.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "gpipe/model/micro_batch.h"

namespace gpipe::detail {

// The receiver checks that it is the one it waits for.
struct Packet {
  std::int64_t step = -1;
  int micro_batch = -1;
  Tensors tensors;
  std::vector<bool> requires_grad;  // which of them the receiver sends a gradient back for; empty in a gradient message
  std::vector<std::int64_t> versions;  // of stashed tensors only
  bool loss_has_weights = false;       // of a gradient message: see EarlierGradients
  std::shared_ptr<c10::Event> ready;   // the tensors may be read after it; null on CPU
};

}  // namespace gpipe::detail
