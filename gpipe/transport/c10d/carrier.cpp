#include "gpipe/transport/c10d/carrier.h"

#include <fmt/format.h>

#include <cstdlib>
#include <utility>
#include <vector>

#include "gpipe/error.h"

namespace gpipe::detail {
namespace {

constexpr const char* kVariable = "GPIPE_CARRIER";

#ifdef GPIPE_HAS_MPI
constexpr bool kHasMpi = true;
#else
constexpr bool kHasMpi = false;
#endif

class GlooCarrier : public Carrier {
 public:
  explicit GlooCarrier(c10d::ProcessGroupGloo& group) : group_(group) {}

  Work send(at::Tensor bytes, int peer, int flow) override {
    std::vector<at::Tensor> tensors = {std::move(bytes)};
    return group_.send(tensors, peer, tag_of(flow));
  }
  Work receive(at::Tensor bytes, int peer, int flow) override {
    std::vector<at::Tensor> tensors = {std::move(bytes)};
    return group_.recv(tensors, peer, tag_of(flow));
  }

 private:
  // Apart from the tags that c10d uses itself.
  static int tag_of(int flow) { return (1 << 20) + flow; }

  c10d::ProcessGroupGloo& group_;
};

}  // namespace

CarrierKind wanted_carrier() {
  const char* const value = std::getenv(kVariable);
  const std::string wanted = value == nullptr ? "" : value;
  if (wanted.empty() || wanted == "gloo") return CarrierKind::kGloo;
  if (wanted != "mpi") {
    throw EnvironmentError(fmt::format("{} is '{}', but what there is, is {}; unset it for gloo", kVariable, wanted,
                                       kHasMpi ? "'gloo' and 'mpi'" : "'gloo'"),
                           kVariable);
  }
  if (!kHasMpi) {
    throw EnvironmentError(
        fmt::format(
            "{} is 'mpi', but this gpipe was built without MPI, and has 'gloo' only; unset it, or build gpipe with "
            "a libtorch that has MPI (Debian 13's) and MPI's headers (libopenmpi-dev)",
            kVariable),
        kVariable);
  }
  return CarrierKind::kMpi;
}

std::string name(CarrierKind kind) { return kind == CarrierKind::kMpi ? "mpi" : "gloo"; }

std::unique_ptr<Carrier> make_carrier([[maybe_unused]] CarrierKind kind, [[maybe_unused]] const World& world,
                                      c10d::ProcessGroupGloo& group) {
#ifdef GPIPE_HAS_MPI
  if (kind == CarrierKind::kMpi) return make_mpi_carrier(world, group);
#endif
  return std::make_unique<GlooCarrier>(group);
}

}  // namespace gpipe::detail
