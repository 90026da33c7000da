// Batches of sample indices: of a fixed number, or of similar lengths up to a number of tokens; each replica gets its
// part.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gpipe::data {

// How far a stream of batches has come: the next one. Saved and restored, the stream goes on exactly where it was.
struct Position {
  std::int64_t epoch = 0;
  std::int64_t batch = 0;  // within the epoch
};

inline bool operator==(const Position& a, const Position& b) { return a.epoch == b.epoch && a.batch == b.batch; }
inline bool operator!=(const Position& a, const Position& b) { return !(a == b); }

// {"epoch": 3, "batch": 17}
std::string to_json(const Position& position);
// Throws DataError unless `json` is such an object, with whole numbers from 0 on.
Position parse_position(const std::string& json);

struct BatchOptions {
  std::uint64_t seed = 0;
  bool shuffle = true;  // another order in every epoch; else the same in all, for evaluation
  bool drop_last = false;
  std::int64_t size_multiple =
      1;  // samples in a batch, but for a last one: of token batches, rounded down to this multiple
  std::int64_t replica = 0;
  std::int64_t num_replicas = 1;
};

// How much fits into a batch of sequences that are padded to the longest of them.
struct TokenBudget {
  std::int64_t max_tokens = 0;   // samples times longest; a batch of size_multiple samples must fit
  std::int64_t max_samples = 0;  // 0: no limit
};

struct Batch {
  std::vector<std::int64_t> samples;  // the part of this replica; empty if the batch has fewer samples than replicas
  std::int64_t size = 0;              // of the batch, over all replicas
  Position position;                  // its own
  Position next;                      // that of the batch after it: what to save once this one is done
};

// An endless stream of batches, epoch after epoch. A batch is a function of its position and the options, without the
// replicas: each gets its even_share of it, as from replica_share. Every sample is in one batch of an epoch,
// unless it is left over and dropped. Thread-compatible.
class Batches {
 public:
  // Batches of `batch_size` samples. With drop_last, what is left over at the end of an epoch is not used in it.
  // Throws InvalidArgument on counts below one, and if an epoch would have no batch.
  Batches(std::int64_t num_samples, std::int64_t batch_size, const BatchOptions& options);

  // Batches of samples of similar length. They are filled from the longest samples to the shortest, so that what is
  // left over are some of the shortest, and come in random order. An epoch has the same number of batches as any other.
  // Throws InvalidArgument as above, and if a sample does not fit.
  Batches(std::vector<std::int64_t> lengths, const TokenBudget& budget, const BatchOptions& options);

  std::int64_t num_batches() const { return num_batches_; }  // of an epoch

  Batch next();
  Position position() const { return position_; }
  // Throws InvalidArgument if an epoch has no such batch.
  void seek(const Position& position);

 private:
  void check_options() const;
  void start_epoch(std::int64_t epoch);
  std::vector<std::int64_t> epoch_order(std::int64_t epoch) const;
  void cut_by_tokens();

  BatchOptions options_;
  std::int64_t num_samples_ = 0;
  std::int64_t batch_size_ = 0;        // 0: by tokens
  std::vector<std::int64_t> lengths_;  // by tokens only
  TokenBudget budget_;
  std::int64_t num_batches_ = 0;

  // Where the batches of an epoch end in its order; by tokens only, the same in every epoch.
  std::vector<std::int64_t> ends_;

  // The epoch at hand.
  std::int64_t epoch_ = -1;
  std::vector<std::int64_t> order_;        // samples
  std::vector<std::int64_t> batch_order_;  // by tokens only: batches
  Position position_;
};

}  // namespace gpipe::data
