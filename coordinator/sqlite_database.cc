#include "coordinator/sqlite_database.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sqlite3.h>

#include "base/fd.h"

namespace farpage::coordinator {
namespace {

constexpr int kBusyTimeoutMs = 200;  // short: only one coordinator uses the file

tl::unexpected<Error> sqlite_failure(const std::string& path, int code, const char* text) {
  switch (code & 0xff) {
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return fail(
          ErrorCode::kConflict,
          fmt::format("store {} is in use by another process: stop it, or use another file", path));
    case SQLITE_NOTADB:
    case SQLITE_CORRUPT:
      return fail(ErrorCode::kInvalid,
                  fmt::format("store {} is damaged or not an SQLite file ({}): restore it from a "
                              "copy, or move it away to start with an empty one",
                              path, text));
    case SQLITE_FULL:
      return fail(ErrorCode::kExhausted, fmt::format("store {}: the disk is full", path));
    case SQLITE_READONLY:
    case SQLITE_PERM:
    case SQLITE_CANTOPEN:
      return fail(ErrorCode::kDenied,
                  fmt::format("store {} cannot be opened for writing ({})", path, text));
    default:
      return fail(ErrorCode::kIo, fmt::format("store {}: {}", path, text));
  }
}

}  // namespace

void Statement::Finalize::operator()(sqlite3_stmt* handle) const {
  sqlite3_finalize(handle);
}

void Database::Close::operator()(sqlite3* handle) const {
  sqlite3_close(handle);
}

Statement::Statement(sqlite3* database, sqlite3_stmt* handle, std::string path)
    : database_(database), path_(std::move(path)), handle_(handle) {}

Status Statement::check(int code) const {
  if (code == SQLITE_OK) return {};
  return sqlite_failure(path_, code, sqlite3_errmsg(database_));
}

Statement& Statement::bind(int64_t value) {
  bind_error_ |= sqlite3_bind_int64(handle_.get(), next_parameter_++, value);
  return *this;
}

Statement& Statement::bind(std::string_view text) {
  bind_error_ |= sqlite3_bind_text(handle_.get(), next_parameter_++, text.data(),
                                   static_cast<int>(text.size()), SQLITE_TRANSIENT);
  return *this;
}

Result<bool> Statement::step() {
  if (bind_error_ != 0)
    return fail(ErrorCode::kIo, "store " + path_ + ": a value was not accepted");
  const int code = sqlite3_step(handle_.get());
  if (code == SQLITE_ROW) return true;
  next_parameter_ = 1;
  const Status status = check(code == SQLITE_DONE ? SQLITE_OK : code);
  sqlite3_reset(handle_.get());
  if (!status) return tl::unexpected(status.error());
  return false;
}

Status Statement::run() {
  FARPAGE_TRY(row, step());
  while (row) {
    FARPAGE_TRY(next, step());
    row = next;
  }
  return {};
}

int64_t Statement::integer(int column) const {
  return sqlite3_column_int64(handle_.get(), column);
}

std::string Statement::text(int column) const {
  const auto* bytes = reinterpret_cast<const char*>(sqlite3_column_text(handle_.get(), column));
  return bytes == nullptr
             ? std::string()
             : std::string(bytes, static_cast<size_t>(sqlite3_column_bytes(handle_.get(), column)));
}

Result<Database> Database::open(const std::string& path) {
  // SQLite would create it with the umask; the -wal file gets the mode of this file.
  const Result<Fd> file =
      Fd::from_call(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600), "open store " + path);
  if (!file) return tl::unexpected(file.error());
  Database database(path);
  sqlite3* handle = nullptr;
  const int code =
      sqlite3_open_v2(path.c_str(), &handle, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, nullptr);
  database.handle_.reset(handle);
  if (code != SQLITE_OK) return sqlite_failure(path, code, sqlite3_errstr(code));
  sqlite3_busy_timeout(handle, kBusyTimeoutMs);
  return database;
}

Result<Database> Database::in_memory(std::string name) {
  Database memory(std::move(name));
  sqlite3* handle = nullptr;
  const int opened =
      sqlite3_open_v2(":memory:", &handle,
                      SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, nullptr);
  memory.handle_.reset(handle);
  if (opened != SQLITE_OK) return sqlite_failure(memory.path_, opened, sqlite3_errstr(opened));
  return memory;
}

Result<Statement> Database::prepare(std::string_view sql) const {
  sqlite3_stmt* handle = nullptr;
  const int code =
      sqlite3_prepare_v2(handle_.get(), sql.data(), static_cast<int>(sql.size()), &handle, nullptr);
  if (code != SQLITE_OK) return sqlite_failure(path_, code, sqlite3_errmsg(handle_.get()));
  return Statement(handle_.get(), handle, path_);
}

Status Database::execute(const std::string& sql) const {
  const int code = sqlite3_exec(handle_.get(), sql.c_str(), nullptr, nullptr, nullptr);
  if (code != SQLITE_OK) return sqlite_failure(path_, code, sqlite3_errmsg(handle_.get()));
  return {};
}

Result<std::string> Database::copy() const {
  FARPAGE_TRY(memory, in_memory("the copy of " + path_));
  sqlite3* const handle = memory.handle_.get();
  sqlite3_backup* const backup = sqlite3_backup_init(handle, "main", handle_.get(), "main");
  if (backup != nullptr) {
    static_cast<void>(sqlite3_backup_step(backup, -1));
    static_cast<void>(sqlite3_backup_finish(backup));  // the result is in the handle
  }
  if (const int code = sqlite3_errcode(handle); code != SQLITE_OK)
    return sqlite_failure(memory.path_, code, sqlite3_errmsg(handle));
  FARPAGE_TRY(check, memory.prepare("PRAGMA quick_check"));
  FARPAGE_TRY(row, check.step());
  if (!row || check.text(0) != "ok")
    return fail(ErrorCode::kInvalid, fmt::format("store {} is damaged", path_));
  FARPAGE_TRY_VOID(check.run());
  sqlite3_int64 size = 0;
  const std::unique_ptr<unsigned char, void (*)(void*)> bytes(
      sqlite3_serialize(handle, "main", &size, 0), sqlite3_free);
  if (bytes == nullptr)
    return fail(ErrorCode::kExhausted, fmt::format("store {}: no memory for a copy", path_));
  return std::string(reinterpret_cast<const char*>(bytes.get()), static_cast<size_t>(size));
}

Result<int64_t> Database::pragma(std::string_view name) const {
  FARPAGE_TRY(statement, prepare(fmt::format("PRAGMA {}", name)));
  FARPAGE_TRY(row, statement.step());
  return row ? statement.integer(0) : 0;
}

}  // namespace farpage::coordinator
