#include "gpipe/model/micro_batch.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <set>

#include "gpipe/error.h"
#include "gpipe/even_share.h"

namespace gpipe {
namespace {

// Inputs may be replicated, targets may not.
const char* remedy(const std::string& what) {
  return what == "batch" ? "name it in replicated_inputs" : "let the loss function have it";
}

// The number of rows all tensors that are split have in common.
std::int64_t checked_rows(const Tensors& batch, const std::set<std::size_t>& whole, const std::string& what) {
  std::int64_t rows = -1;
  std::size_t first = 0;
  for (std::size_t index = 0; index < batch.size(); ++index) {
    if (!batch[index].defined() || whole.count(index)) continue;
    if (batch[index].dim() == 0) {
      throw InvalidArgument(fmt::format("tensor {} of the {} is a scalar, which cannot be split into micro-batches; {}",
                                        index, what, remedy(what)));
    }
    const std::int64_t size = batch[index].size(0);
    if (rows < 0) {
      rows = size;
      first = index;
    } else if (size != rows) {
      throw InvalidArgument(
          fmt::format("tensor {} of the {} has {} rows, but tensor {} has {}; give both the same number, or {}", first,
                      what, rows, index, size, remedy(what)));
    }
  }
  if (rows < 0) throw InvalidArgument(fmt::format("the {} has no tensor that could be split into micro-batches", what));
  if (rows == 0) throw InvalidArgument(fmt::format("the {} has 0 rows; there is nothing to run", what));
  return rows;
}

// A view without autograd's notes about views, which cost more than the view itself, where no gradient goes through it.
at::Tensor rows_of(const at::Tensor& tensor, std::int64_t first, std::int64_t count) {
  if (tensor.requires_grad() || tensor.is_inference()) return tensor.narrow(0, first, count);
  const at::AutoDispatchBelowADInplaceOrView without_notes;
  at::Tensor rows = tensor.slice(0, first, first + count);
  // A change in place counts for the whole batch, as with any view.
  torch::autograd::impl::set_version_counter(rows, torch::autograd::impl::version_counter(tensor));
  return rows;
}

}  // namespace

std::int64_t bytes_of(const Tensors& tensors) {
  std::int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += tensor.defined() ? static_cast<std::int64_t>(tensor.nbytes()) : 0;
  return bytes;
}

std::vector<MicroBatch> split_batch(const Tensors& batch, int num_micro_batches, const std::vector<int>& replicated,
                                    const std::string& what) {
  if (num_micro_batches < 1) {
    throw InvalidArgument(fmt::format("the number of micro-batches is {}; it must be at least 1", num_micro_batches));
  }
  std::set<std::size_t> whole;
  for (const int index : replicated) {
    if (index < 0 || index >= static_cast<int>(batch.size())) {
      throw InvalidArgument(
          fmt::format("tensor {} is to be replicated, but the batch has {} tensors", index, batch.size()));
    }
    whole.insert(static_cast<std::size_t>(index));
  }
  std::vector<MicroBatch> micro_batches = detail::split_rows(checked_rows(batch, whole, what), num_micro_batches);
  for (MicroBatch& micro_batch : micro_batches) {
    for (std::size_t index = 0; index < batch.size(); ++index) {
      const bool keep = !batch[index].defined() || whole.count(index);
      micro_batch.tensors.push_back(keep ? batch[index]
                                         : rows_of(batch[index], micro_batch.first_sample, micro_batch.num_samples));
    }
  }
  return micro_batches;
}

std::vector<MicroBatch> detail::split_rows(std::int64_t rows, int num_micro_batches) {
  const std::int64_t count = std::min<std::int64_t>(rows, num_micro_batches);
  std::vector<MicroBatch> micro_batches(count);
  for (std::int64_t m = 0; m < count; ++m) {
    const detail::RowRange share = detail::even_share(rows, m, count);
    micro_batches[m].first_sample = share.first;
    micro_batches[m].num_samples = share.count;
  }
  return micro_batches;
}

std::int64_t num_rows(const Tensors& batch, const std::vector<int>& replicated) {
  for (std::size_t index = 0; index < batch.size(); ++index) {
    const bool whole = std::count(replicated.begin(), replicated.end(), static_cast<int>(index)) != 0;
    if (batch[index].defined() && !whole && batch[index].dim() > 0) return batch[index].size(0);
  }
  return -1;
}

}  // namespace gpipe
