// EAL arguments that follow from others, with a sysfs of the test's own.
#include "io/eal_arguments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
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
}

TEST(QueueArgumentsTest, WhatIsGivenStays) {
  const Words args{"--vdev=net_af_packet0,qpairs=8,iface=a", "--vdev=net_memif0,secret=mine", "--vdev=net_null0"};
  EXPECT_EQ(with_queue_arguments(args, 2), args);
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

class NumaTest : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::remove_all(sysfs);
    write("bus/pci/devices/0000:3b:00.0/numa_node", "1");
    write("bus/pci/devices/0000:04:00.1/numa_node", "-1");
    write("bus/pci/devices/0001:3b:00.0/numa_node", "0");
    write("devices/system/node/node0/cpulist", "0-1");
    write("devices/system/node/node1/cpulist", "2-3,6,8-9");
    for (int cpu = 0; cpu < 8; ++cpu) CPU_SET(cpu, &cpus);
  }
  void TearDown() override { std::filesystem::remove_all(sysfs); }

  void write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories((sysfs / path).parent_path());
    std::ofstream(sysfs / path) << text << '\n';
  }
  std::vector<int> near(const Words& args) const {
    const cpu_set_t found = cpus_near_device(args, cpus, sysfs.string());
    std::vector<int> list;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &found)) list.push_back(cpu);
    }
    return list;
  }

  const std::filesystem::path sysfs =
      std::filesystem::temp_directory_path() / ("thc_sysfs_" + std::to_string(getpid()));
  const std::vector<int> all{0, 1, 2, 3, 4, 5, 6, 7};
  cpu_set_t cpus{};
};

TEST_F(NumaTest, TheNodeOfTheFirstDevice) {
  const std::vector<int> node1{2, 3, 6};  // 8 and 9 are not this process's
  EXPECT_EQ(near({"-a", "0000:3b:00.0"}), node1);
  EXPECT_EQ(near({"-a0000:3b:00.0,rxq_cqe_comp_en=0"}), node1);
  EXPECT_EQ(near({"--allow", "3b:00.0", "-a", "0001:3b:00.0"}), node1);
  EXPECT_EQ(near({"--no-huge", "--allow=0001:3b:00.0"}), (std::vector<int>{0, 1}));
}

TEST_F(NumaTest, AllWhereTheNodeIsUnknown) {
  EXPECT_EQ(near({"--vdev=net_memif0"}), all);
  EXPECT_EQ(near({"-a", "0000:04:00.1"}), all);
  EXPECT_EQ(near({"-a", "0000:99:00.0"}), all);
  EXPECT_EQ(near({"-a"}), all);
}

TEST_F(NumaTest, AllWhereTheProcessHasNoneOfTheNode) {
  write("devices/system/node/node1/cpulist", "8-9");
  EXPECT_EQ(near({"-a", "0000:3b:00.0"}), all);
}

}  // namespace
}  // namespace thc::io
