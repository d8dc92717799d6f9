# Builds the Rust static library with cargo, and tells where the header of the generated bridge lies.

find_program(CARGO_EXECUTABLE cargo HINTS "$ENV{HOME}/.cargo/bin" REQUIRED)
set(WEIGHTSTREAM_CARGO_TARGET_DIR "${CMAKE_CURRENT_BINARY_DIR}/cargo" CACHE PATH "cargo's target directory")
set(WEIGHTSTREAM_CARGO_FLAGS "" CACHE STRING "More flags for cargo build, for example --offline")

option(WEIGHTSTREAM_COMMAND "Build the command `weightstream` into the library, for the Python package" ON)
set(rust_features $<$<BOOL:${WEIGHTSTREAM_COMMAND}>:--features=cli>)

set(rust_profile release)
set(rust_library "${WEIGHTSTREAM_CARGO_TARGET_DIR}/${rust_profile}/libweightstream.a")
# cxx-build collects the generated headers here, whatever the profile.
set(rust_headers "${WEIGHTSTREAM_CARGO_TARGET_DIR}/cxxbridge")

file(GLOB_RECURSE rust_sources CONFIGURE_DEPENDS src/*.rs cpp/include/weightstream/detail/*.h)
add_custom_command(
  OUTPUT "${rust_library}"
  COMMAND ${CARGO_EXECUTABLE} rustc --lib --release --locked --crate-type staticlib
    --target-dir "${WEIGHTSTREAM_CARGO_TARGET_DIR}" ${rust_features} ${WEIGHTSTREAM_CARGO_FLAGS}
  COMMAND ${CMAKE_COMMAND} -E touch "${rust_library}"
  WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR}
  DEPENDS ${rust_sources} Cargo.toml Cargo.lock build.rs
  COMMENT "cargo build"
  USES_TERMINAL VERBATIM COMMAND_EXPAND_LISTS)
add_custom_target(weightstream_cargo DEPENDS "${rust_library}")

add_library(weightstream_rust INTERFACE)
add_dependencies(weightstream_rust weightstream_cargo)
target_include_directories(weightstream_rust INTERFACE "${rust_headers}" "${rust_headers}/weightstream")
# What `rustc --print native-static-libs` asks for on Linux, beyond what a C++ program links anyway.
target_link_libraries(weightstream_rust INTERFACE "${rust_library}" pthread dl m)
