// SlabFile: places for slabs in a file of this host, which one borrower has for itself alone.
//
// It is the last resort where no node lends a slab: a place is used like the memory of a node, by
// the READs and WRITEs of a channel (rdma/file/file.h), and has a key and a generation.
#pragma once

#include <cstdint>
#include <optional>

#include "base/strong.h"

namespace farpage::rdma {

// Threads: any.
class SlabFile {
 public:
  struct Place {
    RemoteAddress address;
    RemoteKey key;  // the same for all
    Generation generation;
  };

  SlabFile() = default;
  SlabFile(const SlabFile&) = delete;
  SlabFile& operator=(const SlabFile&) = delete;
  virtual ~SlabFile() = default;

  virtual uint64_t slab_bytes() const = 0;
  virtual uint32_t places() const = 0;
  virtual uint32_t free_places() const = 0;

  // A free place, with any bytes, and a generation that it never had in this process. May wait for
  // the disk. nullopt: all are in use, or the disk refuses it.
  virtual std::optional<Place> take() = 0;
  // A place that a dead process had taken. Before the first take(). False: there is no such free
  // place.
  virtual bool take_again(RemoteAddress address, Generation generation) = 0;
  // From now on operations with that generation are refused, and a READ that is under way does not
  // succeed. The place is free when nothing accesses it any more.
  virtual void give_back(RemoteAddress address, Generation generation) = 0;
};

}  // namespace farpage::rdma
