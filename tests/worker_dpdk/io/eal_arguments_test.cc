// EAL arguments that follow from others.
#include "io/eal_arguments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace thc::io {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using Words = std::vector<std::string>;

TEST(QueueArgumentsTest, VirtualDevicesGetWhatTheyNeed) {
  const Words args{"--no-huge", "--vdev=net_af_packet0,iface=a", "--vdev", "net_memif0,role=server", "-a", "net_memif"};
  EXPECT_EQ(with_queue_arguments(args, 1), args);
  EXPECT_EQ(with_queue_arguments(args, 3), (Words{"--no-huge", "--vdev=net_af_packet0,iface=a,qpairs=3", "--vdev",
                                                  "net_memif0,role=server,secret=thc-queues-3", "-a", "net_memif"}));
  const Words full{"--vdev=net_af_packet0,qpairs=8,iface=a", "--vdev=net_memif0,secret=mine", "--vdev=net_null0"};
  EXPECT_EQ(with_queue_arguments(full, 2), full);
}

TEST(StartHintTest, SaysNothingThatIsThereAlready) {
  EXPECT_THAT(start_hint({}), HasSubstr("add --no-huge -m 512"));
  EXPECT_THAT(start_hint({"-m", "64", "--no-hugepage"}), EndsWith("add --no-huge"));
  EXPECT_THAT(start_hint({"-m64"}), EndsWith("add --no-huge"));
  for (const Words& args : {Words{"--no-huge"}, Words{"--no-huge", "-m", "64"}, Words{"-m64", "--no-huge", "--nope"},
                            Words{"--no-huge", "--in-memory"}, Words{"--no-huge", "--socket-mem=64"}}) {
    EXPECT_THAT(start_hint(args), Not(HasSubstr("add --no-huge"))) << args.size();
  }
  EXPECT_THAT(start_hint({"--no-huge"}), HasSubstr("add -m 512"));
  EXPECT_THAT(start_hint({"--no-huge", "-m", "64"}), Not(HasSubstr("add")));
  EXPECT_THAT(start_hint({"--no-huge", "--in-memory"}), HasSubstr("omit --in-memory"));
}

TEST(DeviceHintTest, SaysNothingThatIsThereAlready) {
  EXPECT_THAT(device_hint({"--no-huge"}), HasSubstr("--vdev=net_af_packet0,iface=eth1"));
  EXPECT_THAT(device_hint({"--vdev=net_af_packet0,iface=none"}), Not(HasSubstr("add a virtual one")));
  EXPECT_THAT(device_hint({"-a", "0000:3b:00.0"}), Not(HasSubstr("vfio-pci")));
}

}  // namespace
}  // namespace thc::io
