// Rematerialization: which layers of a chain drop their activations and are run again in the backward; what that costs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gpipe {

// Layers [begin, end): dropped after the forward, run again when the backward comes to them. In that second forward the
// runs in `nested` are dropped again, and so on.
//
//     layers    0  1  2  3  4          "1-3{1-2}"
//     forward   k  d  d  d  k          k: keeps its activations, d: drops them
//     backward              B
//     forward      d  d  k             the run 1-3, with 1-2 dropped again
//     backward           B
//     forward      k  k
//     backward  B  B  B
struct RematerializedRun {
  int begin = 0;
  int end = 0;
  std::vector<RematerializedRun> nested = {};  // inside [begin, end), and not all of it; ascending, disjoint
};

// Ascending, disjoint. Layers in none keep their activations.
using Rematerialization = std::vector<RematerializedRun>;

bool operator==(const RematerializedRun& a, const RematerializedRun& b);
inline bool operator!=(const RematerializedRun& a, const RematerializedRun& b) { return !(a == b); }

// Costs of one layer and one micro-batch. Seconds are finite and at least zero; bytes are at least zero, and those of a
// chain add up to less than 2^63.
struct RematerializationCosts {
  double forward_seconds = 0;
  double backward_seconds = 0;
  std::int64_t activation_bytes = 0;  // kept by the layer for its backward; its output too, where it keeps that
  std::int64_t output_bytes = 0;      // the input of the next layer: what a run that begins there keeps
  // The most live at once in its forward or its backward, its own activations among it, above what others keep. Less
  // than activation_bytes counts as activation_bytes.
  std::int64_t working_bytes = 0;
  // The gradient of its output: waits while a run that ends with this layer is forwarded again.
  std::int64_t output_grad_bytes = 0;
};

struct RematerializationOutcome {
  double seconds = 0;            // of forward, recompute and backward
  double recompute_seconds = 0;  // of these, the recompute
  std::int64_t peak_bytes = 0;
  std::int64_t forward_peak_bytes = 0;   // until the backward begins
  std::int64_t backward_peak_bytes = 0;  // from then on
  std::int64_t kept_bytes = 0;           // between the two
};

// Note [What rematerialization costs]
// The forward goes through the chain once. A layer outside runs leaves its activation_bytes behind until its backward
// has ended. A run leaves its input behind, the output_bytes of the layer before it, until its own backward has ended;
// the input is counted even if the layer before happens to keep it among its activations. It is not counted where
// somebody else keeps it anyway: at the beginning of the chain the caller, and at the beginning of a run for what is
// nested there the run. While a layer is forwarded or backwarded, its working_bytes come on top of what is left behind,
// without the activations of its own that it is about to leave or to free. While a run is forwarded again, the gradient
// that it is to take back waits: output_grad_bytes of its last layer.
//
// Walks through the operations one by one. Throws InvalidArgument, naming the layer, for costs that are not as said
// there, and for none; throws InvalidArgument, naming the run, for runs that are not of these layers, or not as
// RematerializedRun says.
RematerializationOutcome evaluate(const std::vector<RematerializationCosts>& costs,
                                  const Rematerialization& rematerialization);

// "1-3{1-2},5-6": first and last layer of each run, nested runs in braces; "" if nothing is dropped.
std::string to_text(const Rematerialization& rematerialization);

// Throws ParseError for anything else, whatever bytes it is made of: runs that overlap or are out of order, nested ones
// that are not inside or are all of the run, more than 256 of them in each other.
Rematerialization parse_rematerialization(std::string_view text);

}  // namespace gpipe
