// Strong<Tag, T>: a number or a name that cannot be confused with one of another kind.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <functional>
#include <string>

namespace farpage {

template <typename Tag, typename T>
struct Strong {
  T value{};
  auto operator<=>(const Strong&) const = default;  // NOLINT(modernize-use-nullptr): a false alarm
};

using PageIndex = Strong<struct PageIndexTag, uint64_t>;  // page number inside a region
using SlabIndex = Strong<struct SlabIndexTag, uint32_t>;  // slab number inside a region
using RemoteAddress =
    Strong<struct RemoteAddressTag, uint64_t>;              // as the memory node registered it
using Generation = Strong<struct GenerationTag, uint32_t>;  // of one slab; rises with each lease
using NodeId = Strong<struct NodeIdTag, std::string>;
using RegionId = Strong<struct RegionIdTag, std::string>;
using ImageId = Strong<struct ImageIdTag, std::string>;  // its name

// The credential of a READ or WRITE of lent memory. verbs: the card's rkey, no secret. Other
// transports: a handle by which the node finds the slab, and 128 random bits that it compares.
struct RemoteKey {
  uint32_t value = 0;  // not secret
  std::array<uint64_t, 2> secret = {};
  auto operator<=>(const RemoteKey&) const = default;  // NOLINT(modernize-use-nullptr): as above
};

inline constexpr size_t kPageBytes = 4096;
inline constexpr unsigned kPageShift = 12;

}  // namespace farpage

template <typename Tag, typename T>
struct std::hash<farpage::Strong<Tag, T>> {
  size_t operator()(const farpage::Strong<Tag, T>& strong) const noexcept {
    return std::hash<T>{}(strong.value);
  }
};

template <>
struct std::hash<farpage::RemoteKey> {
  size_t operator()(const farpage::RemoteKey& key) const noexcept {
    return std::hash<uint32_t>{}(key.value);
  }
};
