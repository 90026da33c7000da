// Skip store: where stash and pop of a thread put tensors and take them from.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>

namespace gpipe::detail {

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

}  // namespace gpipe::detail
