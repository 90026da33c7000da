// StepCall: what a rank is about to do, for the ranks to find out whether all do the same.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace gpipe::detail {

struct StepCall {
  std::string name;  // "train_step", "forward", "backward"
  std::int64_t step = 0;
  bool training = false;
  bool grad_mode = false;
  bool needs_grad = false;                         // any rank's is enough
  std::int64_t input_rows = -1;                    // -1: this rank was given none
  std::int64_t target_rows = -1;                   // the same
  std::optional<std::vector<bool>> requires_grad;  // of the inputs; nothing: this rank was given none
  std::vector<int> idle;                           // assemblies that could be used
  int assembly = -1;                               // of a backward
  std::string refusal;                             // why this rank cannot do it; empty: it can
};

class WireRecord;

WireRecord to_record(const StepCall& call);
// Throws InvalidArgument if it is none, or if it has other fields, too; `rest` takes those, where a call comes with
// more.
StepCall read_step_call(const WireRecord& record, WireRecord* rest = nullptr);

// By rank; the replicas have the same number of consecutive ranks. What those said who had something to say, by
// replica; `idle` are those that all of its ranks have. Throws FingerprintError, which names both ranks and both
// values, if they are about to do different things, and InvalidArgument if one refuses, or if the targets have another
// number of rows than the inputs. Replicas may have different numbers of rows.
std::vector<StepCall> agreed_calls(const std::vector<StepCall>& of_rank, int num_replicas = 1);

}  // namespace gpipe::detail
