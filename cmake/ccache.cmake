# Compiles through ccache where it is present and works: without a writable cache folder it fails every compilation.
find_program(GPIPE_CCACHE ccache)
mark_as_advanced(GPIPE_CCACHE)

if(GPIPE_CCACHE AND NOT DEFINED GPIPE_CCACHE_WORKS)
  set(probe ${PROJECT_BINARY_DIR}/CMakeFiles/ccache_probe)
  file(WRITE ${probe}.cpp "")
  execute_process(
    COMMAND ${GPIPE_CCACHE} ${CMAKE_CXX_COMPILER} -c ${probe}.cpp -o ${probe}.o
    RESULT_VARIABLE result OUTPUT_QUIET ERROR_QUIET)
  if(result EQUAL 0)
    set(GPIPE_CCACHE_WORKS ON CACHE INTERNAL "")
  else()
    set(GPIPE_CCACHE_WORKS OFF CACHE INTERNAL "")
  endif()
endif()

# Without these words it caches nothing that uses a precompiled header.
if(GPIPE_CCACHE_WORKS AND NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER
    ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros ${GPIPE_CCACHE})
endif()
