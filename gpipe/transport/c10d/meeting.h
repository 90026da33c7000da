// Meeting: where the ranks of a world find each other, and what they tell each other apart from their connections.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gpipe/error.h"
#include "gpipe/launch/world.h"
#include "gpipe/transport/c10d/failure_report.h"
#include "gpipe/transport/c10d/store.h"
#include "gpipe/transport/wire_record.h"

namespace gpipe::detail {

// This rank's connection to the store of rank 0, and on rank 0 the store.
//
// Thread-compatible; what is about the end of a rank's part may be called while another thread is in `gather`.
class Meeting {
 public:
  // Waits for all ranks, so that they know each other's hosts. Throws
  //   EnvironmentError   naming GPIPE_SECRET, if there is none and the ranks are not all on the loopback
  //   HandshakeError     if rank 0 refuses, is no gpipe, or of another version
  //   PeerError          naming the first rank that has not come within the timeout
  // REQUIRES: the world outlives it.
  explicit Meeting(const World& world);

  const c10::intrusive_ptr<ProvenStore>& store() const { return store_; }
  // The numeric one that all connections of this rank are bound to.
  const std::string& own_address() const { return own_address_; }
  // Where a rank is, for an error.
  PeerPlace place_of(int rank) const;

  // What each rank gives under that name, by rank. Calls `on_late` once, with the rank that it waits for, if that has
  // not come for grace_seconds. Throws PeerError.
  std::vector<WireRecord> gather(const std::string& name, const WireRecord& own,
                                 const std::function<void(int rank)>& on_late = {});

  // The end of this rank's part, in three steps. Each of them is over soon, also if nobody answers.
  // 1. Says why it ends: before the connections are reset, by which the others notice.
  void report(const FailureReport& own);
  // 2. The error to throw instead: about the rank that is to blame, as far as the others know; see Note [Who is to
  // blame].
  std::exception_ptr find_culprit(const std::exception_ptr& error, const FailureReport& own);
  // 3. Rank 0, which has the store, stays until the others have read it. A rank that was lost without a word does not
  // come; one that has said why it failed does.
  void let_others_read(const std::exception_ptr& error);

  // For a rank that has waited a little less to speak, too.
  double grace_seconds() const;

 private:
  FileDescriptor join_store();
  std::optional<FailureReport> report_of(int rank);
  // Whether the error blames another rank that has not said anything.
  bool is_about_one_who_is_gone(const std::exception_ptr& error);

  const World& world_;
  std::unique_ptr<StoreServer> server_;  // on rank 0
  std::string own_address_;
  c10::intrusive_ptr<ProvenStore> store_;
  std::vector<std::string> hosts_;  // by rank
  int num_gathered_ = 0;
};

}  // namespace gpipe::detail
