#include "image/page_map.h"

#define XXH_INLINE_ALL
#include <fmt/format.h>
#include <openssl/evp.h>
#include <xxhash.h>

#include <array>
#include <memory>

#include "base/check.h"

namespace farpage::image {
namespace {

constexpr char kDigestName[] = "farpage-image-1";

class Sha256 {
 public:
  Sha256() : context_(::EVP_MD_CTX_new(), &::EVP_MD_CTX_free) {
    check(context_ != nullptr && ::EVP_DigestInit_ex(context_.get(), ::EVP_sha256(), nullptr) == 1);
  }
  void add(const void* data, size_t bytes) {
    check(::EVP_DigestUpdate(context_.get(), data, bytes) == 1);
  }
  std::string finish() {
    std::array<unsigned char, 32> digest{};
    unsigned int length = 0;
    check(::EVP_DigestFinal_ex(context_.get(), digest.data(), &length) == 1);
    std::string text;
    for (const unsigned char byte : digest) text += fmt::format("{:02x}", byte);
    return text;
  }

 private:
  static void check(bool done) { FARPAGE_CHECK(done, "SHA-256 of libcrypto failed"); }
  std::unique_ptr<EVP_MD_CTX, decltype(&::EVP_MD_CTX_free)> context_;
};

}  // namespace

uint64_t checksum_of(std::span<const std::byte> page) {
  const uint64_t checksum = XXH3_64bits(page.data(), page.size());
  return checksum != 0 ? checksum : 1;
}

bool is_zero(std::span<const std::byte> page) {
  const auto* words = reinterpret_cast<const uint64_t*>(page.data());
  const size_t count = page.size() / sizeof(uint64_t);
  for (size_t i = 0; i < count; i += 8) {
    uint64_t any = 0;
    for (size_t j = 0; j < 8; ++j) any |= words[i + j];
    if (any != 0) return false;
  }
  return true;
}

Result<PageMap> PageMap::create(uint64_t pages) {
  FARPAGE_TRY(memory, Mapping::anonymous(encoded_pages(pages) << kPageShift));
  return PageMap(std::move(memory), pages);
}

Result<PageMap> PageMap::decode(Mapping bytes, uint64_t pages,
                                std::span<const uint64_t> stored_pages, const std::string& digest) {
  if (bytes.size() < encoded_pages(pages) << kPageShift)
    return fail(ErrorCode::kInvalid, "the map of the image is shorter than its pages need");
  PageMap map(std::move(bytes), pages);
  for (uint64_t page = 0; page < pages; ++page) {
    const PageEntry& entry = map[page];
    if (entry.is_stored() &&
        (entry.generation >= stored_pages.size() || entry.slot >= stored_pages[entry.generation]))
      return fail(ErrorCode::kInvalid,
                  fmt::format("the map of the image is damaged at page {}", page));
  }
  if (map.digest() != digest)
    return fail(ErrorCode::kInvalid, "the map of the image does not have its digest");
  return map;
}

std::string PageMap::digest() const {
  Sha256 sha;
  sha.add(kDigestName, sizeof kDigestName);
  sha.add(&pages_, sizeof pages_);
  std::array<uint64_t, 512> checksums;
  size_t count = 0;
  for (uint64_t page = 0; page < pages_; ++page) {
    checksums[count++] = entries()[page].checksum;
    if (count < checksums.size() && page + 1 < pages_) continue;
    sha.add(checksums.data(), count * sizeof(uint64_t));
    count = 0;
  }
  return sha.finish();
}

}  // namespace farpage::image
