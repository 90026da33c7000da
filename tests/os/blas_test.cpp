#include "gpipe/os/blas.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "gpipe/error.h"

namespace gpipe {
namespace {

using detail::prepare_blas;

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

int kind = 0;
int num_threads = 0;
int get_parallel() { return kind; }
void set_num_threads(int count) { num_threads = count; }

void* lookup(const char* name) {
  if (std::string(name) == "openblas_get_parallel") return reinterpret_cast<void*>(&get_parallel);
  if (std::string(name) == "openblas_set_num_threads") return reinterpret_cast<void*>(&set_num_threads);
  return nullptr;
}

TEST(Blas, TheSerialOneIsRefusedForSeveralWorkersWithTheRemedy) {
  kind = 0;
  EXPECT_THAT([] { prepare_blas(2, lookup); }, ThrowsMessage<Error>(HasSubstr("install libopenblas0-openmp")));
  EXPECT_NO_THROW(prepare_blas(1, lookup));
}

TEST(Blas, OneWithThreadsOfItsOwnIsToldToUseOne) {
  kind = 1;
  num_threads = 8;
  prepare_blas(2, lookup);
  EXPECT_EQ(num_threads, 1);
}

TEST(Blas, TheOneOnOpenMpIsLeftAlone) {
  kind = 2;
  num_threads = 8;
  prepare_blas(2, lookup);
  EXPECT_EQ(num_threads, 8);
}

TEST(Blas, AnyOtherIsTakenAsItIs) {
  EXPECT_NO_THROW(prepare_blas(2, [](const char*) -> void* { return nullptr; }));
}

}  // namespace
}  // namespace gpipe
