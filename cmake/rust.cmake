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

# The static library of a package, once its sources change: the arguments are what cargo gets more, and these sources.
function(build_static_library library package features)
  add_custom_command(
    OUTPUT "${library}"
    COMMAND ${CARGO_EXECUTABLE} rustc --package ${package} --lib --release --locked --crate-type staticlib
      --target-dir "${WEIGHTSTREAM_CARGO_TARGET_DIR}" ${features} ${WEIGHTSTREAM_CARGO_FLAGS}
    COMMAND ${CMAKE_COMMAND} -E touch "${library}"
    WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR}
    DEPENDS ${ARGN} Cargo.toml Cargo.lock
    COMMENT "cargo build of ${package}"
    USES_TERMINAL VERBATIM COMMAND_EXPAND_LISTS)
endfunction()

file(GLOB_RECURSE rust_sources CONFIGURE_DEPENDS src/*.rs cpp/include/weightstream/*.h)
build_static_library("${rust_library}" weightstream "${rust_features}" ${rust_sources} build.rs)
add_custom_target(weightstream_cargo DEPENDS "${rust_library}")

add_library(weightstream_rust INTERFACE)
add_dependencies(weightstream_rust weightstream_cargo)
target_include_directories(weightstream_rust INTERFACE "${rust_headers}" "${rust_headers}/weightstream")
# What `rustc --print native-static-libs` asks for on Linux, beyond what a C++ program links anyway.
target_link_libraries(weightstream_rust INTERFACE "${rust_library}" pthread dl m)

# Tokenizers and chat templates, which only weightstream-generate has. The library hides its own Rust symbols, so that a program may link
# both.
if(WEIGHTSTREAM_BUILD_RUNNER)
  set(text_library "${WEIGHTSTREAM_CARGO_TARGET_DIR}/${rust_profile}/libweightstream_text.a")
  file(GLOB text_sources CONFIGURE_DEPENDS cpp/tools/text/src/*.rs cpp/tools/text/build.rs cpp/tools/text/Cargo.toml)
  build_static_library("${text_library}" weightstream-text "" ${text_sources})
  add_custom_target(weightstream_text_cargo DEPENDS "${text_library}")
  add_library(weightstream_text INTERFACE)
  add_dependencies(weightstream_text weightstream_text_cargo)
  target_include_directories(weightstream_text INTERFACE "${rust_headers}")
  target_link_libraries(weightstream_text INTERFACE "${text_library}" pthread dl m)
endif()
