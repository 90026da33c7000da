// Dropped layers: their forward leaves nothing behind but its inputs, and is run again in the backward pass.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "gpipe/execute/stage/input_keeper.h"
#include "gpipe/execute/stage/layer_range.h"
#include "gpipe/model/changing_buffers.h"
#include "gpipe/model/layer.h"

namespace gpipe::detail {

// Confined to its worker.
class DroppedLayers {
 public:
  // An input that the layers hand on can be changed by what follows. If that happens between the two forwards, it is an
  // error, unless such inputs are copied.
  enum class HandedOn { kRefuseChanges, kCopy };

  // `name` is for messages: "stage 1".
  DroppedLayers(const std::string& name, std::vector<ChainLayer> layers, HandedOn handed_on);

  // The layers may do something else from now on.
  void forget();

  // What the second forward of a micro-batch needs.
  struct SecondForward {
    Crossing entries;
    std::vector<std::int64_t> versions;
    BufferCopies buffers;
  };
  // Gets tensors without history, which are its own; their memory is not. Leaves no graph alive that it does not want
  // to.
  using Run = std::function<Crossing(Crossing entries)>;

  Crossing forward(Crossing entries, const Run& run, SecondForward& second);
  // On the inputs and buffers that the first forward saw; the buffers are then as they were before. Throws
  // InvalidArgument if an input is not what it was.
  void again(SecondForward second, const Run& run) const;

 private:
  const std::vector<ChainLayer> layers_;
  const HandedOn handed_on_;
  InputKeeper keeper_;
  ChangingBuffers buffers_;
};

}  // namespace gpipe::detail
