// A store in one SQLite file (WAL, synchronous=FULL): survives a crash of the coordinator and of
// its machine.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "coordinator/store.h"

namespace farpage::coordinator {

// Opens or creates `path`, and keeps it locked against other processes until the store closes.
// kConflict: in use by another process. kInvalid: damaged, not SQLite, another program's, or of a
// newer schema. kDenied: not writable. Each names the file and the remedy.
Result<std::unique_ptr<Store>> open_sqlite_store(const std::string& path);

// The bytes of a file with these records, which open_sqlite_store() opens.
Result<std::string> make_sqlite_file(const Snapshot& snapshot);

}  // namespace farpage::coordinator
