// Skip connections: a tensor that one layer puts aside and a later one takes up, past the layers between them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>

#include "gpipe/error.h"

namespace gpipe {

// Called in a layer's forward. `pop` returns what an earlier layer stashed under the name, for the same micro-batch;
// its gradient goes back to where it was stashed. A pipeline sends it straight from stage to stage. Every name is
// stashed once and popped once a forward, and the stashed tensor must not be changed in place afterwards.
//
// Outside a pipeline they work, too: there the tensors wait in a store of the calling thread.
//
// `pop` throws SkipError when nothing is stashed under the name, or when the tensor was changed since.
void stash(const std::string& name, const at::Tensor& tensor);
at::Tensor pop(const std::string& name);

// While it lives, the names this thread stashes and pops are apart from those of other namespaces: a block that uses
// skips can then occur twice in a model. Namespaces nest. LayerChain::isolate opens one around a layer.
//
// Confined to its thread.
class SkipNamespace {
 public:
  explicit SkipNamespace(const std::string& name);
  ~SkipNamespace();
  SkipNamespace(const SkipNamespace&) = delete;
  SkipNamespace& operator=(const SkipNamespace&) = delete;

 private:
  std::size_t outer_size_;
};

// A stashed tensor, and how often it had been changed by then.
struct Stashed {
  at::Tensor tensor;
  std::int64_t version = 0;
};

// Where the calls of a thread go. Names come with their namespace, "block1/shortcut".
class SkipStore {
 public:
  virtual ~SkipStore() = default;
  virtual void put(const std::string& name, Stashed stashed) = 0;
  // Throws SkipError, see missing_skip, when there is none.
  virtual Stashed take(const std::string& name) = 0;
};

// The plain store: names in a map. Putting a name again replaces what a forward that failed may have left.
class SkipMap : public SkipStore {
 public:
  void put(const std::string& name, Stashed stashed) override;
  Stashed take(const std::string& name) override;

  std::map<std::string, Stashed> stashed;
};

// While it lives, this thread's calls go to `store`.
class SkipScope {
 public:
  explicit SkipScope(SkipStore& store);
  ~SkipScope();
  SkipScope(const SkipScope&) = delete;
  SkipScope& operator=(const SkipScope&) = delete;

 private:
  SkipStore* const outer_;
  std::string outer_namespace_;
};

// How often the tensor was changed in place; 0 where libtorch does not count (inference mode).
std::int64_t version_of(const at::Tensor& tensor);

[[noreturn]] void missing_skip(const std::string& name);

}  // namespace gpipe
