# Installs the library, its headers, the runner and a package for find_package(weightstream).

include(CMakePackageConfigHelpers)

# The wheel of ExecuTorch may lie anywhere: keep the place it was found in, and look beside the library first.
set_target_properties(weightstream PROPERTIES INSTALL_RPATH "$ORIGIN;${executorch_library_dir}")

install(TARGETS weightstream EXPORT weightstreamTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime
  RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT runtime)
install(DIRECTORY cpp/include/weightstream DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development
  FILES_MATCHING PATTERN "*.h" PATTERN "detail" EXCLUDE)
if(TARGET weightstream-run)
  set_target_properties(weightstream-run PROPERTIES
    INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR};${executorch_library_dir}")
  install(TARGETS weightstream-run RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT tools)
endif()

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/weightstream)
install(EXPORT weightstreamTargets NAMESPACE weightstream:: DESTINATION ${package_dir} COMPONENT development)
configure_package_config_file(cmake/weightstreamConfig.cmake.in
  ${CMAKE_CURRENT_BINARY_DIR}/weightstreamConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/weightstreamConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES
  ${CMAKE_CURRENT_BINARY_DIR}/weightstreamConfig.cmake
  ${CMAKE_CURRENT_BINARY_DIR}/weightstreamConfigVersion.cmake
  DESTINATION ${package_dir} COMPONENT development)

# The Python package carries the library beside its modules.
if(SKBUILD)
  install(TARGETS weightstream LIBRARY DESTINATION . COMPONENT python)
endif()
