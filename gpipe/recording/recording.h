// Recording: what one pipeline did in the first steps of a program, as digests of bytes; the files of it, and how they
// are read. See docs/verify.md.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gpipe::detail {

enum class RecordKind : std::uint8_t {
  kWeight,      // a parameter, before the step: what the optimizer left
  kEntered,     // what came to the first layer that a stage ran for a micro-batch
  kLeft,        // what a layer returned; behind the last layer, what the loss function did
  kRecomputed,  // the same, when the layer was run again in the backward
  kLoss,        // the loss of the mini-batch
  kArrived,     // the gradient of what the layer returned, on its way back; recorded only if it is asked for
  kGradient,    // of a parameter, or of an input of the model, at the end of the step
  kBuffer,      // at the end of the step
};
constexpr int kNumRecordKinds = 8;

// "weight", "entered", ...
const char* name(RecordKind kind);

// One tensor, or the several that cross the same place together.
struct TensorRecord {
  RecordKind kind = RecordKind::kWeight;
  std::int64_t step = 0;
  int stage = 0;
  int layer = 0;          // of a loss: one behind the last layer
  int micro_batch = -1;   // -1: of the whole step
  std::string name = {};  // of a parameter, a buffer or an input
  std::string hash = {};  // of the bytes, types and shapes; "none" for a gradient that is not there
  std::string shape = {};
  double norm = 0;  // of all elements, in double precision: for what may differ by rounding only
};

// The loss of a mini-batch, once put together from its micro-batches and once of all rows at the same time.
struct LossRecord {
  std::int64_t step = 0;
  double of_parts = 0;
  double of_whole = 0;
  std::string type =
      {};  // in which the loss function has computed both: "Double" if it takes that, else "Float" and so on
};

// A tensor that requires a gradient, is used by a layer, and is no parameter of any layer nor an input.
struct StrayWeight {
  int layer = 0;  // one behind the last: the loss function
  std::string shape;
};

// A layer, run again and again on the same input by itself: see Note [Probes].
struct ProbeCall {
  std::string hash;
  double sum = 0;
};
struct Probe {
  int layer = 0;
  bool has_own_generator = false;  // it drew from a libtorch generator that it brought itself
  std::string problem;             // why it could not be run; empty if it was
  std::vector<ProbeCall> calls;    // the first half at once, the others after a pause
};

struct RecordedLayer {
  std::string name;
  std::string type;
};

struct RecordingHeader {
  int pipeline = 0;  // which pipeline of the program, in the order in which they were made
  int process = 0;   // the process's rank in the world that its launcher made
  int world_size = 1;
  int num_replicas = 1;
  int replica = 0;
  int num_stages = 1;
  std::string schedule;
  std::string recompute;
  int num_micro_batches = 1;
  std::vector<RecordedLayer> layers;
};

// Of one pipeline, in one process.
struct Recording {
  RecordingHeader header;
  std::vector<TensorRecord> tensors;
  std::vector<LossRecord> losses;
  std::vector<StrayWeight> strays;
  std::vector<Probe> probes;
  std::int64_t num_steps = 0;  // that are complete
};

// The lines of a file: JSON, one object a line. The first one is that of the header; those of a step stand together.
std::string to_line(const RecordingHeader& header);
// What has come since: everything in `added`, and "step N is complete" if `completes_step`.
std::string to_lines(const Recording& added, bool completes_step);

// Throws ParseError for a text of any other form. Lines of a step that is not complete do not count, nor does a last
// line without its end: the program was stopped there.
Recording parse_recording(std::string_view text);

// "pipeline0.rank1.jsonl"
std::string recording_file_name(int pipeline, int process);

}  // namespace gpipe::detail
