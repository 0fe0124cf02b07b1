// Strong<Tag, T>: a number or a name that cannot be taken for another one.
#pragma once

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
using RemoteKey = Strong<struct RemoteKeyTag, uint32_t>;    // rkey
using Generation = Strong<struct GenerationTag, uint32_t>;  // of one slab; rises with each lease
using NodeId = Strong<struct NodeIdTag, std::string>;
using RegionId = Strong<struct RegionIdTag, std::string>;

inline constexpr size_t kPageBytes = 4096;
inline constexpr unsigned kPageShift = 12;

}  // namespace farpage

template <typename Tag, typename T>
struct std::hash<farpage::Strong<Tag, T>> {
  size_t operator()(const farpage::Strong<Tag, T>& strong) const noexcept {
    return std::hash<T>{}(strong.value);
  }
};
