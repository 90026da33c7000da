#include "data/batches.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "data/data_error.h"
#include "data/order.h"
#include "data/random.h"
#include "gpipe/error.h"
#include "gpipe/even_share.h"
#include "gpipe/text/json.h"

namespace gpipe::data {
namespace {

using detail::find_json_document;

// A key part of its own, so that the order of the batches is not that of the samples.
constexpr std::uint64_t kBatchOrder = 1;

std::int64_t position_field(const nlohmann::json& object, const char* name) {
  const auto field = object.find(name);
  if (field == object.end() || !field->is_number_unsigned() || field->get<std::uint64_t>() > INT64_MAX) {
    throw DataError("position", fmt::format("\"{}\" is missing or no whole number from 0 on", name),
                    "start without it, from the first batch");
  }
  return field->get<std::int64_t>();
}

void check_at_least_one(const char* what, std::int64_t value) {
  if (value < 1) throw InvalidArgument(fmt::format("{} is {}; expected at least 1", what, value));
}

}  // namespace

std::string to_json(const Position& position) {
  return fmt::format("{{\"epoch\": {}, \"batch\": {}}}", position.epoch, position.batch);
}

Position parse_position(const std::string& json) {
  const nlohmann::json object = find_json_document(json).value_or(nullptr);
  if (!object.is_object() || object.size() != 2) {
    throw DataError("position", "expected an object with \"epoch\" and \"batch\"",
                    "start without it, from the first batch");
  }
  return {position_field(object, "epoch"), position_field(object, "batch")};
}

Batches::Batches(std::int64_t num_samples, std::int64_t batch_size, const BatchOptions& options)
    : options_(options), num_samples_(num_samples), batch_size_(batch_size) {
  check_options();
  check_at_least_one("num_samples", num_samples);
  check_at_least_one("batch_size", batch_size);
  num_batches_ = num_samples / batch_size + (num_samples % batch_size != 0 && !options.drop_last ? 1 : 0);
  if (num_batches_ == 0) {
    throw InvalidArgument(
        fmt::format("no batch of {} in {} samples, and the last one is dropped; use a smaller batch size", batch_size,
                    num_samples));
  }
  start_epoch(0);
}

Batches::Batches(std::vector<std::int64_t> lengths, const TokenBudget& budget, const BatchOptions& options)
    : options_(options),
      num_samples_(static_cast<std::int64_t>(lengths.size())),
      lengths_(std::move(lengths)),
      budget_(budget) {
  check_options();
  check_at_least_one("the number of samples", num_samples_);
  check_at_least_one("max_tokens", budget.max_tokens);
  if (budget.max_samples < 0 || (budget.max_samples > 0 && budget.max_samples < options.size_multiple)) {
    throw InvalidArgument(fmt::format("max_samples is {}; expected 0, or at least size_multiple = {}",
                                      budget.max_samples, options.size_multiple));
  }
  const std::int64_t longest_that_fits = budget.max_tokens / options.size_multiple;
  for (std::int64_t sample = 0; sample < num_samples_; ++sample) {
    const std::int64_t length = lengths_[static_cast<std::size_t>(sample)];
    if (length < 1 || length > longest_that_fits) {
      throw InvalidArgument(
          fmt::format("sample {} has {} tokens; expected 1 to {} (max_tokens / size_multiple); raise "
                      "max_tokens, or shorten or leave out the sample",
                      sample, length, longest_that_fits));
    }
  }
  cut_by_tokens();
  if (num_batches_ == 0) {
    throw InvalidArgument(
        fmt::format("{} samples fill no batch of {} tokens, and the last one is dropped; use a smaller max_tokens",
                    num_samples_, budget.max_tokens));
  }
  start_epoch(0);
}

void Batches::check_options() const {
  check_at_least_one("size_multiple", options_.size_multiple);
  check_at_least_one("num_replicas", options_.num_replicas);
  if (options_.replica < 0 || options_.replica >= options_.num_replicas) {
    throw InvalidArgument(fmt::format("replica is {}; expected 0 to {}", options_.replica, options_.num_replicas - 1));
  }
}

// The longest first; among equals in the epoch's random order, so that a batch has other company in every epoch.
std::vector<std::int64_t> Batches::epoch_order(std::int64_t epoch) const {
  std::vector<std::int64_t> order;
  if (options_.shuffle) {
    order = shuffled_order(num_samples_, options_.seed, epoch);
  } else {
    order.resize(static_cast<std::size_t>(num_samples_));
    std::iota(order.begin(), order.end(), std::int64_t{0});
  }
  if (batch_size_ == 0) {
    std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
      return lengths_[static_cast<std::size_t>(a)] > lengths_[static_cast<std::size_t>(b)];
    });
  }
  return order;
}

// The sorted lengths alone say where the batches end: they are the same in every epoch.
void Batches::cut_by_tokens() {
  std::vector<std::int64_t> sorted = lengths_;
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  for (std::int64_t begin = 0; begin < num_samples_;) {
    std::int64_t size = budget_.max_tokens / sorted[static_cast<std::size_t>(begin)];
    if (budget_.max_samples > 0) size = std::min(size, budget_.max_samples);
    size -= size % options_.size_multiple;
    const bool is_complete = size <= num_samples_ - begin;
    begin = is_complete ? begin + size : num_samples_;
    if (is_complete || !options_.drop_last) ends_.push_back(begin);
  }
  num_batches_ = static_cast<std::int64_t>(ends_.size());
}

void Batches::start_epoch(std::int64_t epoch) {
  if (epoch == epoch_) return;
  if (options_.shuffle || epoch_ < 0) {
    order_ = epoch_order(epoch);
    if (batch_size_ == 0) {
      batch_order_.resize(ends_.size());
      std::iota(batch_order_.begin(), batch_order_.end(), std::int64_t{0});
      Random random({options_.seed, static_cast<std::uint64_t>(epoch), kBatchOrder});
      if (options_.shuffle) shuffle(batch_order_, random);
    }
  }
  epoch_ = epoch;
}

Batch Batches::next() {
  start_epoch(position_.epoch);
  Batch batch;
  batch.position = position_;
  std::int64_t begin = position_.batch * batch_size_;
  std::int64_t end = std::min(begin + batch_size_, num_samples_);
  if (batch_size_ == 0) {
    const auto place = static_cast<std::size_t>(batch_order_[static_cast<std::size_t>(position_.batch)]);
    begin = place == 0 ? 0 : ends_[place - 1];
    end = ends_[place];
  }
  batch.size = end - begin;
  const detail::RowRange share = detail::even_share(batch.size, options_.replica, options_.num_replicas);
  const auto first = order_.begin() + begin + share.first;
  batch.samples.assign(first, first + share.count);
  ++position_.batch;
  if (position_.batch == num_batches_) position_ = {position_.epoch + 1, 0};
  batch.next = position_;
  return batch;
}

void Batches::seek(const Position& position) {
  if (position.epoch < 0 || position.batch < 0 || position.batch >= num_batches_) {
    throw InvalidArgument(
        fmt::format("no batch {} in epoch {}: an epoch has {} batches; the position is of other data or "
                    "another batch size",
                    position.batch, position.epoch, num_batches_));
  }
  position_ = position;
}

}  // namespace gpipe::data
