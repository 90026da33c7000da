// Changing buffers: those that a forward itself changes, such as batch norm's running statistics, and a way back in
// time.
#pragma once

#include <vector>

#include "gpipe/model/layer.h"
#include "gpipe/model/micro_batch.h"

namespace gpipe::detail {

// Of buffers whose values are plain, their bytes, one buffer after the other; else a copy of each.
struct BufferCopies {
  Tensors tensors;
  at::Tensor bytes;  // undefined: there are tensors
};

// A recompute has to see the buffers as the forward saw them, and must not change them a second time. Which ones change
// is learnt from the first forward; only those are copied from then on.
//
// Thread-compatible.
class ChangingBuffers {
 public:
  explicit ChangingBuffers(const std::vector<ChainLayer>& layers);

  // Copies of those that change, taken before a forward; of all as long as nothing was learnt.
  BufferCopies snapshot() const;
  // After the first forward, with the snapshot before it, which it reduces to those that changed.
  void learn(BufferCopies& snapshot);

  void put_back(const BufferCopies& snapshot) const;

  // While it lives, the buffers are as in the snapshot.
  class Rewind {
   public:
    Rewind(const ChangingBuffers& buffers, const BufferCopies& snapshot);
    ~Rewind();
    Rewind(const Rewind&) = delete;
    Rewind& operator=(const Rewind&) = delete;

   private:
    const ChangingBuffers& buffers_;
    const BufferCopies present_;
  };

 private:
  Tensors buffers_;
  bool learnt_ = false;
};

}  // namespace gpipe::detail
