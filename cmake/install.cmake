# cmake --install: the binary, its shim, and the library for find_package(farpage) and pkg-config.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(TARGETS farpage RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
# The folder in which `farpage run` looks for the shim.
install(TARGETS farpage_preload LIBRARY DESTINATION lib/farpage)

install(TARGETS farpage_shared EXPORT farpage LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES ${PROJECT_SOURCE_DIR}/library/include/farpage/region.h
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/farpage)

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/farpage)
install(EXPORT farpage FILE farpageConfig.cmake NAMESPACE farpage:: DESTINATION ${package})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/farpageConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/farpageConfigVersion.cmake DESTINATION ${package})

file(RELATIVE_PATH FARPAGE_PC_TO_PREFIX /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(${PROJECT_SOURCE_DIR}/cmake/farpage.pc.in ${PROJECT_BINARY_DIR}/farpage.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/farpage.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
