// Group: the processes that run one pipeline, and this one's place among them. A world of one is a group, too.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gpipe/error.h"
#include "gpipe/execute/group/gradient_sum.h"
#include "gpipe/execute/group/step_call.h"
#include "gpipe/execute/group/step_report.h"
#include "gpipe/execute/values/peers.h"
#include "gpipe/interpret/flow_ends.h"
#include "gpipe/launch/world.h"
#include "gpipe/model/micro_batch.h"
#include "gpipe/model/tie.h"
#include "gpipe/schedule/proof.h"
#include "gpipe/transport/fingerprint.h"
#include "gpipe/transport/packet.h"
#include "gpipe/transport/wire_record.h"

namespace gpipe::detail {

// How many tensors a message may have, which a receiver makes room for.
struct FlowTensors {
  int direct = 8;                 // from a stage to the next, and back
  int routed = 8;                 // skips and ties
  std::vector<bool> pinned = {};  // by stage: what it receives goes on to CUDA; empty: nothing does
};

// What a rank does outside its own stages is done by all ranks, in the same order: they make the same calls. In a world
// of one there is nobody to tell anything, and every call returns at once.
//
// Unless a call says otherwise, an error in it ends this rank's part in the world: it throws as the ends of a flow do.
//
// Thread-compatible.
class Group {
 public:
  // The group of the processes that `peers` connects. If that is null, those of the world that the environment tells
  // of, which the first pipeline of this process connects and the last one leaves. Throws as read_world and `connect`
  // do.
  static std::unique_ptr<Group> find(std::shared_ptr<Peers> peers);

  virtual ~Group() = default;

  // The place of this process among all.
  virtual const World& world() const = 0;
  // Throws InvalidArgument, with a remedy, unless the processes can be that many workers.
  virtual void check_num_workers(int num_workers) const = 0;
  virtual bool runs_worker(int worker) const = 0;
  // How many of that many workers this process runs.
  virtual int num_own_workers(int num_workers) const = 0;
  // The host that the rank is on, for an error.
  virtual std::string host_of(int rank) const = 0;

  // Runs `make`, which gets a fingerprint to fill with what all ranks must have in common, or null if nobody compares
  // it. Throws what `make` throws; FingerprintError, on all ranks, for the first difference.
  virtual void begin(const std::function<void(Fingerprint*)>& make) = 0;
  // Throws FingerprintError, on all ranks, unless all give the same.
  virtual void compare(const Fingerprint& fingerprint) = 0;
  // Completes the call by `prepare`, and finds out whether all ranks do the same. What the ranks give with it comes
  // back by rank in `given`. The result is by replica. Nothing has ended if it throws InvalidArgument or
  // FingerprintError.
  virtual std::vector<StepCall> agree(StepCall call, const std::function<void(StepCall&)>& prepare,
                                      std::vector<WireRecord>* given = nullptr) = 0;

  // Gives to all ranks what each of them gives, by rank. For small things.
  virtual std::vector<WireRecord> gather(const WireRecord& own) = 0;
  // Gives the same to rank 0 only, and nothing to the others. For large things.
  virtual std::vector<WireRecord> collect(const WireRecord& own) = 0;
  // Gives to all ranks of a replica what its rank of that worker gives; it comes to the CPU.
  virtual Tensors broadcast(int worker, Tensors tensors) = 0;
  virtual WireRecord broadcast(int worker, WireRecord record) = 0;
  // Completes the result of a step by what other ranks have of it. Gives the last stages' reason for the step not to
  // count; empty: it does.
  virtual std::string complete(StepResult& result, const StepReport& own, int last_worker) = 0;

  // Gives to the ranks that run the same stages what each of them gives, by replica.
  virtual std::vector<WireRecord> gather_replicas(const WireRecord& own) = 0;
  // Puts the first replica's values into those of the others. Throws FingerprintError if the names or shapes differ.
  virtual void copy_first_replica(const Fingerprint& names, const Tensors& values) = 0;
  virtual GradientSum& gradient_sum() = 0;

  // The ends that this process has of the flows.
  virtual FlowEnds<Packet> connect(const ProvenSchedule& schedule, const FlowTensors& most) = 0;
  // Returns what all ranks call at the beginning of a step, to bring tied weights from their owners; it throws as the
  // ends of a flow do, and InvalidArgument if the weights do not fit together. Where a process has all layers it does
  // nothing, because tied weights share their memory. `worker_of_layer` says by layer which worker runs it. REQUIRES:
  // `ties` outlive the result.
  virtual std::function<void()> connect_ties(const std::vector<Tie>& ties, const std::vector<int>& worker_of_layer) = 0;

  virtual bool has_failed() const = 0;
  // Ends this rank's part in the world, and throws the first error; in a world of one, throws `error`.
  [[noreturn]] virtual void fail(std::exception_ptr error) = 0;
  // Runs what not all ranks would throw from: an exception ends this rank's part.
  template <typename Work>
  auto failing(const Work& work) -> decltype(work()) {
    try {
      return work();
    } catch (...) {
      fail(std::current_exception());
      throw;  // not reached, which the compiler does not see behind a virtual function
    }
  }
  // Waits until all ranks are here: as the last call of all. Calls `on_late_rank` if one is late: see PipelineOptions.
  // Throws PeerError.
  virtual void leave(const std::function<void(const PeerError&)>& on_late_rank) = 0;
};

}  // namespace gpipe::detail
