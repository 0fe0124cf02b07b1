# farpage_options: the compile options of all our targets.
add_library(farpage_options INTERFACE)
target_compile_options(farpage_options INTERFACE
  -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wno-missing-field-initializers)
if(FARPAGE_WERROR)
  target_compile_options(farpage_options INTERFACE -Werror)
endif()
target_include_directories(farpage_options INTERFACE ${PROJECT_SOURCE_DIR})
target_compile_definitions(farpage_options INTERFACE FARPAGE_VERSION="${PROJECT_VERSION}")

# The shim is loaded into foreign programs, so it is never instrumented.
add_library(farpage_sanitizers INTERFACE)
if(FARPAGE_SANITIZE)
  target_compile_options(farpage_sanitizers INTERFACE
    -fsanitize=${FARPAGE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(farpage_sanitizers INTERFACE -fsanitize=${FARPAGE_SANITIZE})
  if(FARPAGE_SANITIZE MATCHES thread)
    # ThreadSanitizer does not model fences: races that one rules out are in tests/tsan.supp.
    target_compile_options(farpage_sanitizers INTERFACE -Wno-tsan)
    # Nor Asio's; the queue that hands its handlers over has a mutex.
    target_compile_definitions(farpage_sanitizers INTERFACE BOOST_ASIO_DISABLE_FENCED_BLOCK)
  endif()
endif()

# farpage_folder(NAME sources...): the library target of a folder, alias farpage::NAME.
function(farpage_folder name)
  add_library(farpage_${name} STATIC ${ARGN})
  add_library(farpage::${name} ALIAS farpage_${name})
  target_link_libraries(farpage_${name} PUBLIC farpage_options farpage_sanitizers)
endfunction()
