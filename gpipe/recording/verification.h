// Verification: what `verify` and `gpipe verify` have found out about a training. A value.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gpipe {

// Why a training does not give the same bits, or does not train what it looks like.
enum class LikelyCause {
  kUnseededData,        // the inputs differ from run to run
  kUnseededWeights,     // the initial weights do
  kOwnGenerator,        // a layer draws from a generator of its own
  kHiddenState,         // a layer keeps something outside of its parameters and buffers
  kClock,               // a layer reads the clock
  kRace,                // threads touch the same memory, or a tensor changes on its way from stage to stage
  kBatchStatistics,     // statistics of a batch norm that replicas do not share
  kLossIsNoMean,        // the loss of the micro-batches is not that of the mini-batch
  kUnregisteredWeight,  // a layer uses a weight that is none of its parameters
  kOrderOfAdditions,    // everything that is added up is the same, but not the sum
  kOptimizer,           // the gradients are the same, but the weights behind the update are not
  kBackward,            // the gradient of a layer is another for the same forward
  kUnknown,
};
constexpr int kNumLikelyCauses = 13;

// "own-generator"
const char* name(LikelyCause cause);
// A sentence without its full stop: "the layer draws from a random generator of its own"
const char* description(LikelyCause cause);
// What to do about it.
const char* remedy(LikelyCause cause);

struct VerifyFinding {
  LikelyCause cause = LikelyCause::kUnknown;
  std::string run;        // in which it was seen
  int pipeline = 0;       // of the program, in the order in which they are made
  std::int64_t step = 0;  // in training, from 0 on
  std::string tensor;     // what is different: "what layer 3 (drop, Noise) returned", "gradient of head.weight"
  std::string layer;      // where it was made: "layer 3 (drop, Noise)"; empty if no layer made it
  int stage = -1;         // -1: none
  int micro_batch = -1;   // -1: the whole mini-batch
  std::string action;     // "forward", "recompute", "backward", "update"
  std::string detail;     // what else is known about it
};

enum class VerifyOutcome { kSame, kDiffers, kNotPossible, kFailed };

struct VerifiedRun {
  std::string name;  // "2 stages, zb-v, recompute always"
  VerifyOutcome outcome = VerifyOutcome::kSame;
  std::string note;            // why it was not possible, or how it failed
  std::int64_t num_steps = 0;  // that were compared, of all pipelines
  // Tensors whose bytes were compared.
  std::int64_t num_losses = 0;
  std::int64_t num_crossings = 0;  // between layers, and between stages
  std::int64_t num_gradients = 0;
  std::int64_t num_buffers = 0;
  std::int64_t num_weights = 0;
};

struct Verification {
  std::string reference;  // the run that the others are compared with
  std::vector<VerifiedRun> runs;
  std::vector<VerifyFinding> findings;
  std::vector<std::string> notes;

  // Something was compared, nothing was found, and no run failed.
  bool is_verified() const;
};

// A table of what was compared; then "verified", or what differs first and its likely cause.
std::string to_text(const Verification& verification);
std::string to_json(const Verification& verification);

}  // namespace gpipe
