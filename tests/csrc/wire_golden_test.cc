// tests/vectors/golden_packets.toml against the generated structs. The path of the file comes from CMake.
#include <gtest/gtest.h>
#include <toml++/toml.h>

#include <bit>
#include <cctype>
#include <cstdint>
#include <cstring>
#include <string>
#include <variant>
#include <vector>

#include "thc/hello.h"
#include "thc/wire_layout.h"

namespace thc {
namespace {

using Bytes = std::vector<std::uint8_t>;

Bytes from_hex(const std::string& text) {
  std::string digits;
  for (const char c : text) {
    if (std::isspace(static_cast<unsigned char>(c)) == 0) digits += c;
  }
  Bytes bytes;
  for (std::size_t i = 0; i < digits.size(); i += 2) {
    bytes.push_back(static_cast<std::uint8_t>(std::stoul(digits.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

/// Field `name`, 0 when it is not listed; 64-bit fields are hexadecimal text, because TOML integers are signed.
std::uint64_t field(const toml::table& fields, const char* name) {
  if (const auto text = fields[name].value<std::string>(); text && fields[name].is_string()) {
    return std::stoull(*text, nullptr, 16);
  }
  return static_cast<std::uint64_t>(fields[name].value_or<std::int64_t>(0));
}

template <typename T>
void append(const T& value, Bytes* to) {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(&value);
  to->insert(to->end(), bytes, bytes + sizeof(value));
}

Bytes encode_header(const toml::table& fields) {
  const auto get = [&](const char* name) { return field(fields, name); };
  wire::Header header{};
  header.version = wire::kVersion;
  header.message_type = static_cast<std::uint8_t>(get("message_type"));
  header.flags = static_cast<std::uint8_t>(get("flags"));
  header.code_bits = static_cast<std::uint8_t>(get("code_bits"));
  header.value_bits = static_cast<std::uint8_t>(get("value_bits"));
  header.worker_id = static_cast<std::uint8_t>(get("worker_id"));
  header.num_workers = static_cast<std::uint8_t>(get("num_workers"));
  header.contributions = static_cast<std::uint8_t>(get("contributions"));
  header.job_id = static_cast<std::uint16_t>(get("job_id"));
  header.payload_count = static_cast<std::uint16_t>(get("payload_count"));
  header.epoch = static_cast<std::uint32_t>(get("epoch"));
  header.round = static_cast<std::uint32_t>(get("round"));
  header.slot = static_cast<std::uint32_t>(get("slot"));
  header.partition = static_cast<std::uint16_t>(get("partition"));
  header.chunk = static_cast<std::uint16_t>(get("chunk"));
  header.switch_pass = static_cast<std::uint8_t>(get("switch_pass"));
  header.switch_step = static_cast<std::uint8_t>(get("switch_step"));
  header.switch_state = static_cast<std::uint16_t>(get("switch_state"));
  Bytes bytes;
  append(header, &bytes);
  return bytes;
}

void append_hello(const toml::table& fields, Bytes* to) {
  wire::HelloPayload hello{};
  hello.table_hash = field(fields, "table_hash");
  hello.nonce = field(fields, "nonce");
  hello.cookie = field(fields, "cookie");
  hello.run = field(fields, "run");
  hello.granularity = static_cast<std::uint16_t>(field(fields, "granularity"));
  hello.codes_per_packet = static_cast<std::uint16_t>(field(fields, "codes_per_packet"));
  hello.slots = static_cast<std::uint32_t>(field(fields, "slots"));
  hello.quorum = static_cast<std::uint8_t>(field(fields, "quorum"));
  hello.arithmetic = static_cast<std::uint32_t>(field(fields, "arithmetic"));
  hello.settings_hash = static_cast<std::uint32_t>(field(fields, "settings_hash"));
  append(hello, to);
}

void append_welcome(const toml::table& fields, Bytes* to) {
  wire::WelcomePayload welcome{};
  welcome.slots = static_cast<std::uint32_t>(field(fields, "slots"));
  welcome.norm_slots = static_cast<std::uint32_t>(field(fields, "norm_slots"));
  welcome.window_bytes = static_cast<std::uint32_t>(field(fields, "window_bytes"));
  welcome.shards = static_cast<std::uint16_t>(field(fields, "shards"));
  welcome.codes_multiple = static_cast<std::uint16_t>(field(fields, "codes_multiple"));
  append(welcome, to);
}

void append_error(const toml::table& fields, Bytes* to) {
  wire::ErrorPayload error{};
  error.worker_bitmap = field(fields, "worker_bitmap");
  error.reason = static_cast<std::uint16_t>(field(fields, "reason"));
  error.field = static_cast<std::uint16_t>(field(fields, "field"));
  error.job_value = static_cast<std::uint32_t>(field(fields, "job_value"));
  append(error, to);
}

template <typename T>
std::vector<T> numbers(const toml::table& packet, const char* name) {
  std::vector<T> values;
  if (const toml::array* array = packet[name].as_array()) {
    for (const toml::node& node : *array) values.push_back(static_cast<T>(node.value<double>().value()));
  }
  return values;
}

Bytes encode_payload(const toml::table& packet) {
  Bytes bytes;
  if (const toml::table* hello = packet["hello"].as_table()) append_hello(*hello, &bytes);
  if (const toml::table* welcome = packet["welcome"].as_table()) append_welcome(*welcome, &bytes);
  if (const toml::table* challenge = packet["challenge"].as_table()) {
    append(wire::ChallengePayload{.cookie = field(*challenge, "cookie")}, &bytes);
  }
  if (const toml::table* error = packet["error"].as_table()) append_error(*error, &bytes);
  for (const auto value : numbers<std::uint16_t>(packet, "values")) append(be16_t(value), &bytes);
  for (const auto norm : numbers<float>(packet, "norms")) append(be32_t(std::bit_cast<std::uint32_t>(norm)), &bytes);
  const bool wide = packet["header"]["value_bits"].value<int>() == 16;
  for (const auto value : numbers<std::uint16_t>(packet, "aggregate")) {
    wide ? append(be16_t(value), &bytes) : append(be8_t(static_cast<std::uint8_t>(value)), &bytes);
  }
  return bytes;
}

class WireGoldenTest : public testing::Test {
 protected:
  WireGoldenTest() : file(toml::parse_file(THC_GOLDEN_PACKETS)) {
    for (const toml::node& node : *file["packet"].as_array()) packets.push_back(node.as_table());
  }

  static std::string name(const toml::table& packet) { return packet["name"].value<std::string>().value(); }
  static Bytes bytes(const toml::table& packet) { return from_hex(packet["bytes"].value<std::string>().value()); }

  const toml::table& find(const std::string& wanted) const {
    for (const toml::table* packet : packets) {
      if (name(*packet) == wanted) return *packet;
    }
    throw std::out_of_range(wanted);
  }

  toml::table file;
  std::vector<const toml::table*> packets;
};

TEST_F(WireGoldenTest, FieldsEncodeToTheBytes) {
  for (const toml::table* packet : packets) {
    SCOPED_TRACE(name(*packet));
    Bytes expected = bytes(*packet);
    Bytes encoded = encode_header(*(*packet)["header"].as_table());
    const Bytes payload = encode_payload(*packet);
    encoded.insert(encoded.end(), payload.begin(), payload.end());
    if (packet->contains("codes")) {
      expected.resize(sizeof(wire::Header));  // codes are packed by kernels (tests/reference)
    }
    EXPECT_EQ(encoded, expected);
  }
}

TEST_F(WireGoldenTest, HelloIsReadAndWritten) {
  const Bytes packet = bytes(find("hello"));
  const ParsedHello parsed = parse_hello(packet, 1500);
  ASSERT_TRUE(std::holds_alternative<Hello>(parsed));
  const Hello& hello = std::get<Hello>(parsed);
  EXPECT_EQ(hello.job_id, 0x0102);
  EXPECT_EQ(hello.worker_id, 2);
  EXPECT_EQ(hello.config.num_workers, 3);
  EXPECT_EQ(hello.cookie, 0x99aabbccddeeff01U);
  EXPECT_EQ(hello.run, 0xfedcba9876543210U);
  EXPECT_EQ(hello.config.arithmetic, 0x01a3f2U);
  EXPECT_EQ(hello_payload(hello), Bytes(packet.begin() + sizeof(wire::Header), packet.end()));
}

}  // namespace
}  // namespace thc
