// The settings of the compressor for BytePS, as they arrive at a server: strings.
#include "byteps/compressor_settings.h"

#include <gtest/gtest.h>

#include <string>
#include <unordered_map>

#include "thc/errors.h"

namespace thc::byteps {
namespace {

using Keywords = std::unordered_map<std::string, std::string>;

Keywords two_bits() { return {{"thc_bits", "2"}, {"thc_coordinates", "100"}, {"thc_table", "0,1,5,65535"}}; }

TEST(CompressorSettings, AreRead) {
  const CompressorSettings settings = CompressorSettings::parse(two_bits());
  EXPECT_EQ(settings.coordinates, 100U);
  EXPECT_EQ(settings.code_bytes(), 25U);
  EXPECT_EQ(settings.table.bits(), 2U);
  EXPECT_EQ(settings.table.values()[2], 5U);
  EXPECT_EQ(settings.table.granularity(), 65535U);
}

TEST(CompressorSettings, CodesOfTheLastByteAreCounted) {
  Keywords keywords = two_bits();
  keywords["thc_coordinates"] = "101";
  EXPECT_EQ(CompressorSettings::parse(keywords).code_bytes(), 26U);
}

TEST(CompressorSettings, EachIsNeeded) {
  for (const auto& [key, value] : two_bits()) {
    Keywords keywords = two_bits();
    keywords.erase(key);
    EXPECT_THROW(CompressorSettings::parse(keywords), ConfigurationError) << key;
  }
}

TEST(CompressorSettings, WhatIsNotANumberIsRefused) {
  for (const char* key : {"thc_bits", "thc_coordinates", "thc_table"}) {
    for (const char* value : {"", "-1", "4x", "0,1,,3", "0,1,5,65536"}) {
      Keywords keywords = two_bits();
      keywords[key] = value;
      EXPECT_THROW(CompressorSettings::parse(keywords), ConfigurationError) << key << " = " << value;
    }
  }
}

TEST(CompressorSettings, ATableThatIsNoneIsRefused) {
  for (const char* table : {"0,1,5", "0,5,1,7", "1,2,3,4"}) {
    Keywords keywords = two_bits();
    keywords["thc_table"] = table;
    EXPECT_THROW(CompressorSettings::parse(keywords), ConfigurationError) << table;
  }
}

}  // namespace
}  // namespace thc::byteps
