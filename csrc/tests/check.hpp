#pragma once

#include <iostream>
#include <source_location>
#include <string_view>
#include <vector>

/// The few words that the C++ tests need: named cases, checks that report and go on, expected errors.
namespace check {

struct Case {
  const char* name;
  void (*body)();
};

inline int& failures() {
  static int count = 0;
  return count;
}

inline void that(bool holds, std::string_view what, std::source_location at = std::source_location::current()) {
  if (holds) return;
  ++failures();
  std::cerr << at.file_name() << ':' << at.line() << ": not so: " << what << '\n';
}

template <typename A, typename B>
void equal(const A& have, const B& want, std::string_view what,
           std::source_location at = std::source_location::current()) {
  if (have == want) return;
  ++failures();
  std::cerr << at.file_name() << ':' << at.line() << ": " << what << ": " << have << ", not " << want << '\n';
}

/// Runs `body`, which has to throw an Error, and returns it.
template <typename Error, typename Body>
Error thrown(const Body& body, std::source_location at = std::source_location::current()) {
  try {
    body();
  } catch (const Error& error) {
    return error;
  }
  std::cerr << at.file_name() << ':' << at.line() << ": nothing was thrown\n";
  std::exit(1);
}

inline int run(const std::vector<Case>& cases) {
  for (const Case& one : cases) {
    const int before = failures();
    one.body();
    std::cout << (failures() == before ? "ok      " : "FAILED  ") << one.name << '\n';
  }
  return failures() == 0 ? 0 : 1;
}

}  // namespace check
