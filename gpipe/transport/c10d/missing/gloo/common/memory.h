// Debian's libgloo-dev leaves this header of Gloo out, which gloo/transport/tcp/pair.h needs. Here is what that one
// uses, with the members of Gloo's own, so that a Pair has the same layout. On the include path only where the real one
// is missing.
#pragma once

#include <memory>

namespace gloo {

template <typename T>
struct NonOwningPtr {
  std::shared_ptr<T> pointer;
};

template <typename T>
struct WeakNonOwningPtr {
  std::weak_ptr<T> pointer;
};

}  // namespace gloo
