// Checksums against known ones, and against a computation bit by bit.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "check.hpp"
#include "memcfg/crc32c.hpp"

namespace {

using Bytes = std::vector<unsigned char>;

std::uint32_t whole(const Bytes& data) {
  return memcfg::crc32c(data.data(), data.size());
}

// The definition: division of the bits, the lowest of a byte first.
std::uint32_t plain(const Bytes& data) {
  std::uint32_t crc = 0xFFFFFFFFU;
  for (const unsigned char byte : data)
    for (unsigned bit = 0; bit < 8; ++bit) {
      const std::uint32_t top = (crc ^ (std::uint32_t{byte} >> bit)) & 1;
      crc = (crc >> 1) ^ (top != 0 ? 0x82F63B78U : 0U);
    }
  return ~crc;
}

Bytes numbers(std::size_t count) {
  Bytes data(count);
  for (std::size_t i = 0; i < count; ++i)
    data[i] = static_cast<unsigned char>(i * i * 31 + i / 7);
  return data;
}

}  // namespace

TEST(checksums_are_those_of_rfc_3720) {
  // Appendix B.4
  const std::string digits = "123456789";
  CHECK(whole(Bytes(digits.begin(), digits.end())) == 0xE3069283U);
  CHECK(whole(Bytes(32, 0)) == 0x8A9136AAU);
  CHECK(whole(Bytes(32, 0xFF)) == 0x62A8AB43U);
  CHECK(whole({}) == 0);
}

TEST(a_checksum_is_that_of_its_definition_also_in_parts) {
  for (std::size_t size = 0; size < 200; ++size) {
    const Bytes data = numbers(size);
    CHECK(whole(data) == plain(data));
    const std::size_t cut = size / 3;
    CHECK(memcfg::crc32c_by_tables(data.data(), size, 0) == plain(data));
    const std::uint32_t first = memcfg::crc32c(data.data(), cut);
    CHECK(memcfg::crc32c(data.data() + cut, size - cut, first) == plain(data));
  }
}
