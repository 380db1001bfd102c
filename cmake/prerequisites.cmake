# Enables C++, looks for everything else that the build needs, and names all that is missing in one message. Included once,
# by the project's CMakeLists.txt. Makes the targets thc_highway, thc_prometheus, thc_sodium, thc_fmt, thc_logging (spdlog), thc_toml and
# thc_cli11, and PkgConfig::DPDK when THC_HAVE_DPDK.
#
# Programs run on hosts without these libraries: most are used by their headers alone, Highway, prometheus-cpp and
# libsodium go into the wheel (THC_BUNDLED).
include(CheckLanguage)

set(missing "")
set(packages "")

# `thc_need(FOUND WHAT PACKAGE)` notes a missing prerequisite, and the Debian package that has it.
macro(thc_need found what package)
  if(NOT ${found})
    string(APPEND missing "\n  - ${what}")
    list(APPEND packages ${package})
  endif()
endmacro()

# `thc_need_header(TARGET HEADER WHAT PACKAGE)` makes an interface library of a library's headers.
macro(thc_need_header target header what package)
  find_path(${target}_INCLUDE_DIR ${header})
  mark_as_advanced(${target}_INCLUDE_DIR)
  thc_need(${target}_INCLUDE_DIR "${what} (${header})" ${package})
  add_library(${target} INTERFACE)
  target_include_directories(${target} SYSTEM INTERFACE ${${target}_INCLUDE_DIR})
endmacro()

# `thc_need_library(TARGET HEADER LIBRARIES WHAT PACKAGE)` does the same for a library that is linked.
macro(thc_need_library target header libraries what package)
  thc_need_header(${target} ${header} ${what} ${package})
  if(${target}_INCLUDE_DIR AND CMAKE_CXX_COMPILER)
    foreach(library IN ITEMS ${libraries})
      find_library(${target}_${library} ${library} REQUIRED)
      mark_as_advanced(${target}_${library})
      target_link_libraries(${target} INTERFACE ${${target}_${library}})
    endforeach()
  endif()
endmacro()

check_language(CXX)
thc_need(CMAKE_CXX_COMPILER "a C++20 compiler" g++)
if(CMAKE_CXX_COMPILER)
  enable_language(CXX)
  find_package(Threads REQUIRED)
else()
  list(APPEND CMAKE_PREFIX_PATH /usr/local /usr)  # a compiler tells CMake these folders
endif()
thc_need_library(thc_highway hwy/highway.h hwy "Highway" libhwy-dev)
thc_need_library(
  thc_prometheus prometheus/exposer.h "prometheus-cpp-pull;prometheus-cpp-core" "prometheus-cpp" prometheus-cpp-dev)
thc_need_library(thc_sodium sodium.h sodium "libsodium" libsodium-dev)
thc_need_header(thc_fmt fmt/core.h "fmt" libfmt-dev)
thc_need_header(thc_logging spdlog/spdlog.h "spdlog" libspdlog-dev)
thc_need_header(thc_toml toml++/toml.h "toml++" libtomlplusplus-dev)
thc_need_header(thc_cli11 CLI/CLI.hpp "CLI11" libcli11-dev)
if(THC_BUILD_PYTHON)
  set(python_header "")
  find_package(Python 3.11 COMPONENTS Interpreter QUIET)
  if(Python_FOUND)
    execute_process(
      COMMAND ${Python_EXECUTABLE} -c "import sysconfig; print(sysconfig.get_path('include'), end='/Python.h')"
      OUTPUT_VARIABLE python_header)
  endif()
  if(EXISTS "${python_header}")
    set(THC_HAVE_PYTHON_HEADERS ON)
  endif()
  thc_need(THC_HAVE_PYTHON_HEADERS "the C headers of Python 3.11 or newer (Python.h)" python3-dev)
  if(THC_HAVE_PYTHON_HEADERS AND CMAKE_CXX_COMPILER)
    find_package(Python 3.11 REQUIRED COMPONENTS Interpreter Development.Module)
    find_package(pybind11 3 CONFIG QUIET)
    if(NOT pybind11_FOUND)
      string(APPEND missing "\n  - pybind11 3 or newer, which pip brings by itself: pip install 'pybind11>=3'")
    endif()
  endif()
endif()
set(THC_HAVE_DPDK OFF)
if(NOT THC_WITH_DPDK STREQUAL "OFF")
  find_package(PkgConfig QUIET)
  if(PkgConfig_FOUND AND CMAKE_CXX_COMPILER)
    pkg_check_modules(DPDK QUIET IMPORTED_TARGET libdpdk>=22.11)
  endif()
  if(DPDK_FOUND)
    set(THC_HAVE_DPDK ON)
  endif()
endif()
if(THC_WITH_DPDK STREQUAL "ON")
  thc_need(THC_HAVE_DPDK "DPDK 22.11 or newer, found by pkg-config, for THC_WITH_DPDK=ON" "pkg-config;libdpdk-dev")
endif()

if(missing)
  set(mend "")
  if(packages)
    list(REMOVE_DUPLICATES packages)
    list(JOIN packages " " packages)
    set(mend "\nOn Debian and Ubuntu:\n\n  apt-get install --no-install-recommends ${packages}\n")
  endif()
  message(FATAL_ERROR "byteps_thc cannot be built here. Missing:\n${missing}\n${mend}")
endif()

set(THC_BUNDLED "libhwy|libprometheus-cpp-|libcivetweb|libsodium")  # file names begin so; civetweb is prometheus-cpp's HTTP server
target_compile_definitions(thc_fmt INTERFACE FMT_HEADER_ONLY=1)
target_compile_definitions(thc_logging INTERFACE SPDLOG_FMT_EXTERNAL)
target_compile_definitions(thc_toml INTERFACE TOML_HEADER_ONLY=1)
target_link_libraries(thc_logging INTERFACE thc_fmt)
