# Boost.Asio and Boost.Beast, compiled once instead of in every source that includes them.
find_package(Boost 1.81 REQUIRED)
find_package(OpenSSL REQUIRED)
find_package(Threads REQUIRED)

# gpumux_boost_part(NAME HEADER ...): a library of what these headers define.
function(gpumux_boost_part name)
  set(source ${PROJECT_BINARY_DIR}/boost/${name}.cc)
  list(TRANSFORM ARGN REPLACE "(.+)" "#include <\\1>\n" OUTPUT_VARIABLE includes)
  list(JOIN includes "" includes)
  file(CONFIGURE OUTPUT ${source} CONTENT "${includes}")
  add_library(${name} STATIC EXCLUDE_FROM_ALL ${source})
  set_target_properties(${name} PROPERTIES UNITY_BUILD OFF)
  target_link_libraries(${name} PUBLIC Boost::headers Threads::Threads PRIVATE gpumux_options gpumux_sanitize)
  # Asio uses fences, which ThreadSanitizer does not know and g++ warns of.
  if(GPUMUX_SANITIZE MATCHES thread AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(${name} PRIVATE -Wno-tsan)
  endif()
endfunction()

gpumux_boost_part(gpumux_boost boost/asio/impl/src.hpp boost/beast/src.hpp)

# TLS as well. OpenSSL from its archives: the kubelet's plugin is fully static, and gpumuxd runs where no OpenSSL is.
gpumux_boost_part(gpumux_tls boost/asio/ssl/impl/src.hpp)
target_include_directories(gpumux_tls SYSTEM PUBLIC ${OPENSSL_INCLUDE_DIR})
target_link_libraries(gpumux_tls PUBLIC gpumux_boost -l:libssl.a -l:libcrypto.a)
