// Database and Statement: own sqlite3 handles and map SQLite's codes to our errors.
//
// Private to the SQLite store. Threads: one at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"

struct sqlite3;
struct sqlite3_stmt;

namespace farpage::coordinator {

// A prepared statement. Columns count from 0, parameters are bound in order.
class Statement {
 public:
  Statement(sqlite3* database, sqlite3_stmt* handle, std::string path);

  Statement& bind(int64_t value);
  Statement& bind(std::string_view text);  // copied
  // True: a row is available. False: done; the statement can be bound and run again.
  Result<bool> step();
  // Runs a statement that returns no rows.
  Status run();

  int64_t integer(int column) const;
  std::string text(int column) const;

 private:
  struct Finalize {
    void operator()(sqlite3_stmt* handle) const;
  };
  Status check(int code) const;

  sqlite3* database_;
  std::string path_;
  std::unique_ptr<sqlite3_stmt, Finalize> handle_;
  int next_parameter_ = 1;
  int bind_error_ = 0;
};

class Database {
 public:
  // Opens or creates the file, readable only by its owner (it holds rkeys). kDenied, kIo.
  static Result<Database> open(const std::string& path);

  // Empty; ends with the object. `name`: for the texts of failures.
  static Result<Database> in_memory(std::string name);

  Result<Statement> prepare(std::string_view sql) const;
  Status execute(const std::string& sql) const;
  Result<int64_t> pragma(std::string_view name) const;
  // The bytes of a file with the same content, by SQLite's backup API; checked.
  Result<std::string> copy() const;
  const std::string& path() const { return path_; }

 private:
  struct Close {
    void operator()(sqlite3* handle) const;
  };
  explicit Database(std::string path) : path_(std::move(path)) {}

  std::string path_;
  std::unique_ptr<sqlite3, Close> handle_;
};

}  // namespace farpage::coordinator
