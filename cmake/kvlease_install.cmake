# Installs the rooms' libraries and headers, the binary, and the package `kvlease`, whose target
# kvlease::kvlease stands for all rooms: find_package(kvlease) works from an install tree.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

get_property(rooms GLOBAL PROPERTY KVLEASE_ROOMS)
list(TRANSFORM rooms PREPEND kvlease_ OUTPUT_VARIABLE room_targets)
add_library(kvlease_all INTERFACE)
target_link_libraries(kvlease_all INTERFACE ${room_targets})
target_compile_features(kvlease_all INTERFACE cxx_std_23)
set_property(TARGET kvlease_all PROPERTY EXPORT_NAME kvlease)
add_library(kvlease::kvlease ALIAS kvlease_all)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/kvlease)
install(TARGETS kvlease_all ${room_targets} EXPORT kvleaseTargets
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT kvleaseTargets NAMESPACE kvlease:: DESTINATION ${package_dir})
if(TARGET kvlease)
  install(TARGETS kvlease RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()

foreach(room ${rooms})
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/kvlease/${room}
          DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/kvlease
          FILES_MATCHING PATTERN "*.h" PATTERN "*testing.h" EXCLUDE PATTERN "corpus" EXCLUDE)
endforeach()

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/kvleaseConfig.cmake.in
                              ${PROJECT_BINARY_DIR}/kvleaseConfig.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/kvleaseConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/kvleaseConfig.cmake
              ${PROJECT_BINARY_DIR}/kvleaseConfigVersion.cmake
        DESTINATION ${package_dir})
