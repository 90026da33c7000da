#include "gpipe/os/network.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gpipe/error.h"

namespace gpipe {
namespace {

using detail::free_port;
using detail::interface_address;

using ::testing::HasSubstr;

TEST(Network, KnowsTheLoopback) { EXPECT_EQ(interface_address("lo"), "127.0.0.1"); }

TEST(Network, NamesTheInterfacesThereAreInsteadOfAnUnknownOne) {
  try {
    interface_address("nosuch0");
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("nosuch0"));
    EXPECT_THAT(error.what(), HasSubstr("lo"));
  }
}

TEST(Network, FindsAFreePort) {
  const int port = free_port("127.0.0.1");
  EXPECT_GT(port, 0);
  EXPECT_LE(port, 65535);
  EXPECT_THROW(free_port("192.0.2.1"), LaunchError);
}

}  // namespace
}  // namespace gpipe
