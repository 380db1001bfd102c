// Addresses and names from text. Names of other hosts are looked up by tests/worker_dpdk/session/test_addresses.py.
#include "io/name_lookup.h"

#include <gtest/gtest.h>

#include <string>

#include "io/address.h"
#include "thc/errors.h"

namespace thc::io::test {
namespace {

std::string quoted(const std::string& text) { return std::string(1, '"').append(text).append(1, '"'); }

std::string error_of(const std::vector<std::string>& servers) {
  try {
    resolve_servers(servers, 48865);
  } catch (const ConfigurationError& error) {
    return error.what();
  }
  return "none";
}

TEST(NameLookupTest, ReadsAddressesAndNames) {
  EXPECT_EQ(to_string(resolve_endpoint("10.1.2.3:99", 1)), "10.1.2.3:99");
  EXPECT_EQ(to_string(resolve_endpoint("10.1.2.3", 48865)), "10.1.2.3:48865");
  EXPECT_EQ(to_string(resolve_endpoint("localhost:7", 1)), "127.0.0.1:7");
  EXPECT_EQ(ipv4_to_string(resolve_host("localhost")), "127.0.0.1");
}

TEST(NameLookupTest, RefusesWhatIsNoAddress) {
  for (const char* bad : {"", ":1", "10.1.2", "10.1.2.3.4", "10.1.0x2", "10.1.2.3:", "10.1.2.3:65536", "10.1.2.3:1x",
                          "a b:1", "[10.1.2.3]:1", "127.0.0.1:port"}) {
    EXPECT_THROW(resolve_endpoint(bad, 1), ConfigurationError) << bad;
  }
  for (const char* bad : {"0.0.0.0", "10.0.0.1:0"}) {
    EXPECT_NE(error_of({bad}).find("must not be 0"), std::string::npos) << error_of({bad});
  }
}

TEST(NameLookupTest, SaysThatThereIsNoIpv6) {
  for (const char* address : {"::1", "[::1]:48865", "[::1]", "2001:db8::1", "fe80::1%eth0"}) {
    const std::string error = error_of({address});
    EXPECT_NE(error.find(quoted(address) + " is an IPv6 address"), std::string::npos) << error;
    EXPECT_NE(error.find("IPv4 only"), std::string::npos) << error;
  }
}

TEST(NameLookupTest, RefusesTheSameServerTwice) {
  EXPECT_EQ(error_of({"10.0.0.1", "10.0.0.2", "10.0.0.1:48866"}), "none");
  for (const auto& [first, second] : {std::pair{"10.0.0.1", "10.0.0.1:48865"}, std::pair{"localhost", "127.0.0.1"}}) {
    const std::string error = error_of({first, "10.0.0.2", second});
    EXPECT_NE(error.find("same server twice"), std::string::npos) << error;
    EXPECT_NE(error.find(quoted(first) + " and " + quoted(second)), std::string::npos) << error;
  }
}

}  // namespace
}  // namespace thc::io::test
