// Layer scope: who is running on this thread, for the layers themselves and for their random draws.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>
#include <vector>

namespace gpipe {

// A layer at work on a micro-batch.
struct LayerRun {
  std::uint64_t seed = 0;
  std::int64_t step = 0;
  int layer = 0;
  int micro_batch = 0;
  std::int64_t first_sample = 0;  // of the micro-batch, in its mini-batch
  bool recomputing = false;
};

// While it lives, every libtorch operation of this thread that would draw from a default generator draws from a
// stream that is a function of (seed, step, layer, micro_batch) alone: dropout in every form, bernoulli_, normal_,
// randperm, multinomial and all the others. Draws with a generator of their own, on other threads and outside the scope
// are untouched. Scopes nest: the inner one counts. A scope in which nothing is drawn costs next to nothing.
//
// On a device other than the CPU the numbers are those of its own generator, seeded in the same way. Draws of fused
// operations that take no generator (attention, recurrent layers of CUDA's libraries), and on devices that libtorch has
// no generator for, are left alone: they throw an Error in a recompute, which could not repeat them.
//
// Confined to its thread.
class LayerScope {
 public:
  explicit LayerScope(const LayerRun& run);
  ~LayerScope();
  LayerScope(const LayerScope&) = delete;
  LayerScope& operator=(const LayerScope&) = delete;

  // Of the innermost scope of this thread; null outside.
  static const LayerRun* current();
  // What the innermost scope, which must exist, draws from. Seeded at the first call: that takes a microsecond.
  static const at::Generator& stream();
  // The same for draws on a device other than the CPU; undefined if libtorch has no generators for it.
  static const at::Generator& stream(c10::Device device);
  // Whether an operation of the innermost scope, which must exist, drew from another generator than its stream.
  static bool has_drawn_elsewhere();
  // How often it was called before within the innermost scope, which must exist: tells calls of one layer run apart.
  static int next_call();

  // An operation of this thread was given that generator. For the hook of the operations.
  static void note_given(const at::Generator& generator);

 private:
  struct DeviceStream {
    c10::Device device;
    at::Generator generator;
  };

  const LayerRun run_;
  at::Generator generator_;                   // undefined until the first draw
  std::vector<DeviceStream> device_streams_;  // of devices that were drawn on
  int num_calls_ = 0;
  bool has_drawn_elsewhere_ = false;
  LayerScope* const outer_;
  c10::impl::IncludeDispatchKeyGuard guard_;
};

namespace detail {

// The dispatch key under which libtorch's operations are hooked, see Note [Random streams]; with its kernels
// registered.
constexpr c10::DispatchKey kHookKey = c10::DispatchKey::DeferredInit;
c10::DispatchKeySet hook_key();

}  // namespace detail

// True inside a layer's forward that is run again in the backward pass.
bool is_recomputing();

}  // namespace gpipe
