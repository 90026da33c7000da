# Builds the examples against an installed gpipe, in a copy of this folder:
#
#   cmake -S examples -B examples/build -DCMAKE_PREFIX_PATH=$HOME/.local && cmake --build examples/build
cmake_minimum_required(VERSION 3.22)
project(gpipe_examples LANGUAGES CXX)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

find_package(gpipe REQUIRED COMPONENTS torch)
find_package(fmt REQUIRED)
file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cpp)
foreach(source ${sources})
  get_filename_component(name ${source} NAME_WE)
  add_executable(${name} ${source})
  target_link_libraries(${name} PRIVATE gpipe::gpipe fmt::fmt)
endforeach()
