# What `cmake --install` puts where: the headers, the library, the command, and the package that `find_package(gpipe)` reads.
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/gpipe)

install(TARGETS gpipe_core EXPORT gpipe-targets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
# In a file of its own: who uses the core alone needs no libtorch.
if(TARGET gpipe_torch)
  install(TARGETS gpipe_torch EXPORT gpipe-torch-targets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(EXPORT gpipe-torch-targets NAMESPACE gpipe:: DESTINATION ${package_dir})
endif()
if(TARGET gpipe_cli)
  install(TARGETS gpipe_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  install(PROGRAMS ${PROJECT_SOURCE_DIR}/scripts/get-data DESTINATION ${CMAKE_INSTALL_LIBEXECDIR}/gpipe)  # which it starts
endif()
if(TARGET gpipe_train_program)
  install(TARGETS gpipe_train_program RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})  # next to gpipe, which starts it
  # `gpipe bench` starts it.
  install(PROGRAMS ${PROJECT_SOURCE_DIR}/scripts/bench-pipe DESTINATION ${CMAKE_INSTALL_LIBEXECDIR}/gpipe)
  install(TARGETS gpipe_subwords LIBRARY DESTINATION lib/gpipe)                     # which it loads
endif()
# Programs to read, to copy and to build against this installation, and a profile to plan with.
install(DIRECTORY ${PROJECT_SOURCE_DIR}/examples/ DESTINATION ${CMAKE_INSTALL_DATADIR}/gpipe/examples
  PATTERN CMakeLists.txt EXCLUDE PATTERN __pycache__ EXCLUDE PATTERN export_model.py EXCLUDE)
install(PROGRAMS ${PROJECT_SOURCE_DIR}/examples/export_model.py DESTINATION ${CMAKE_INSTALL_DATADIR}/gpipe/examples)
install(FILES ${PROJECT_SOURCE_DIR}/cmake/installed_examples.cmake
  DESTINATION ${CMAKE_INSTALL_DATADIR}/gpipe/examples RENAME CMakeLists.txt)
install(EXPORT gpipe-targets NAMESPACE gpipe:: DESTINATION ${package_dir})
install(CODE "set(INCLUDE_DIR ${CMAKE_INSTALL_INCLUDEDIR})")
install(SCRIPT ${PROJECT_SOURCE_DIR}/cmake/install_headers.cmake)

configure_package_config_file(
  ${PROJECT_SOURCE_DIR}/cmake/gpipe-config.cmake.in ${PROJECT_BINARY_DIR}/gpipe-config.cmake
  INSTALL_DESTINATION ${package_dir})
# Before 1.0, a new minor version may change the interface.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/gpipe-config-version.cmake COMPATIBILITY SameMinorVersion)
install(
  FILES ${PROJECT_BINARY_DIR}/gpipe-config.cmake ${PROJECT_BINARY_DIR}/gpipe-config-version.cmake
  DESTINATION ${package_dir})
