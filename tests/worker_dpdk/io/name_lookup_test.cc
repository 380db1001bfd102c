// Addresses and names from text. Names of other hosts are looked up by tests/worker_dpdk/session/test_addresses.py.
#include "io/name_lookup.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "io/address.h"
#include "thc/errors.h"

namespace thc::io::test {
namespace {

std::string quoted(const std::string& text) { return std::string(1, '"').append(text).append(1, '"'); }

std::string resolved(const std::string& text) { return to_string(resolve_servers({text}, 48865).front().front()); }

std::string error_of(const std::vector<std::string>& servers) {
  try {
    resolve_servers(servers, 48865);
  } catch (const ConfigurationError& error) {
    return error.what();
  }
  return "none";
}

TEST(NameLookupTest, ReadsAddressesAndNames) {
  EXPECT_EQ(resolved("10.1.2.3:99"), "10.1.2.3:99");
  EXPECT_EQ(resolved("10.1.2.3"), "10.1.2.3:48865");
  EXPECT_EQ(resolved("[2001:DB8:0::1]:99"), "[2001:db8::1]:99");
  EXPECT_EQ(resolved("[::1]"), "[::1]:48865");
  EXPECT_EQ(resolved("[::ffff:10.1.2.3]:7"), "10.1.2.3:7");
  EXPECT_EQ(resolved("[fe80::1%lo]:7"), "[fe80::1%lo]:7");
  EXPECT_EQ(to_string(resolve_own_host("localhost")), "127.0.0.1");
  EXPECT_EQ(to_string(resolve_own_host("::")), "::");
  EXPECT_EQ(to_string(resolve_own_host("[::1]")), "::1");
  const Addresses localhost = resolve_servers({"localhost:7"}, 1).front();
  EXPECT_NE(std::ranges::find(localhost, Endpoint{0x7f000001, 7}), localhost.end());
}

TEST(NameLookupTest, RefusesWhatIsNoAddress) {
  for (const char* bad :
       {"", ":1", "10.1.2", "10.1.2.3.4", "10.1.0x2", "10.1.2.3:", "10.1.2.3:65536", "10.1.2.3:1x", "a b:1",
        "[10.1.2.3]:1", "127.0.0.1:port", "[::1", "[::1]x:5", "[::1]5", "[]:1", "a:b:c", "[::g]", "[::1%absent]"}) {
    EXPECT_NE(error_of({bad}), "none") << bad;
  }
  for (const char* bad : {"0.0.0.0", "10.0.0.1:0", "[::]:1", "[::1]:0"}) {
    EXPECT_NE(error_of({bad}).find("must not be 0"), std::string::npos) << error_of({bad});
  }
}

TEST(NameLookupTest, SaysHowAnIpv6AddressIsWritten) {
  for (const char* address : {"::1", "2001:db8::1", "fe80::1%lo"}) {
    const std::string error = error_of({address});
    EXPECT_NE(error.find(quoted(address) + " is an IPv6 address without brackets"), std::string::npos) << error;
    EXPECT_NE(error.find("[" + std::string(address) + "]:48865"), std::string::npos) << error;
  }
  EXPECT_NE(error_of({"[fe80::1]:5"}).find("[fe80::1%eth0]"), std::string::npos) << error_of({"[fe80::1]:5"});
}

TEST(NameLookupTest, RefusesTheSameServerTwice) {
  EXPECT_EQ(error_of({"10.0.0.1", "10.0.0.2", "10.0.0.1:48866", "[::1]", "[::2]"}), "none");
  for (const auto& [first, second] :
       {std::pair{"10.0.0.1", "10.0.0.1:48865"}, std::pair{"localhost", "127.0.0.1"},
        std::pair{"10.0.0.1", "[::ffff:10.0.0.1]:48865"}, std::pair{"[::1]", "[0:0::1]:48865"}}) {
    const std::string error = error_of({first, "10.0.0.2", second});
    EXPECT_NE(error.find("same server twice"), std::string::npos) << error;
    EXPECT_NE(error.find(quoted(first) + " and " + quoted(second)), std::string::npos) << error;
  }
}

TEST(IpAddressTest, KnowsFamiliesAndSources) {
  const IpAddress ipv4(0x0a000001);
  const IpAddress ipv6 = resolve_own_host("2001:db8:0:7::1");
  EXPECT_TRUE(ipv4.is_ipv4() && !ipv6.is_ipv4() && !IpAddress().is_ipv4());
  EXPECT_TRUE(IpAddress().is_any() && IpAddress(0).is_any() && !ipv6.is_any());
  EXPECT_TRUE(IpAddress().speaks_to(ipv4) && IpAddress().speaks_to(ipv6));
  EXPECT_FALSE(IpAddress(0).speaks_to(ipv6) || ipv6.speaks_to(ipv4));
  EXPECT_EQ(ipv4.source(), ipv4);
  EXPECT_EQ(ipv6.source(), resolve_own_host("2001:db8:0:7:8::9").source());
  EXPECT_NE(ipv6.source(), resolve_own_host("2001:db8:0:8::1").source());
}

}  // namespace
}  // namespace thc::io::test
