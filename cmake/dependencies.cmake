# All dependencies come from the distribution; the package list is in ./dev.
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
find_package(tl-expected REQUIRED)
find_package(spdlog REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
find_package(SQLite3 REQUIRED)
find_package(OpenSSL REQUIRED)
find_package(prometheus-cpp REQUIRED)
find_package(GTest REQUIRED)
pkg_check_modules(liburing REQUIRED IMPORTED_TARGET liburing)
pkg_check_modules(liblz4 REQUIRED IMPORTED_TARGET liblz4)
pkg_check_modules(libxxhash REQUIRED IMPORTED_TARGET libxxhash)  # header only: XXH_INLINE_ALL
# Flags from pkg-config: without them the header has another ABI than the library.
pkg_check_modules(httplib REQUIRED IMPORTED_TARGET cpp-httplib)

set(FARPAGE_HAVE_VERBS OFF)
if(FARPAGE_VERBS)
  find_path(FARPAGE_VERBS_INCLUDE infiniband/verbs.h)
  if(FARPAGE_VERBS_INCLUDE)
    set(FARPAGE_HAVE_VERBS ON)
  else()
    message(WARNING "libibverbs headers not found: building without the verbs transport "
                    "(install libibverbs-dev to have it)")
  endif()
endif()
message(STATUS "verbs transport: ${FARPAGE_HAVE_VERBS}")
