// JSON for .cc files, of this room and of those that serve: objects are read field by field, and
// what is wrong is said with the field's path, its value and what it may hold; objects are written
// as compact text. Boost.JSON checks the syntax and decodes strings. Values stay text until they
// are read: Boost.JSON 1.81 rounds some numbers wrongly by one unit, and fields that we do not know
// must survive exactly.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "kvlease/base/bytes.h"
#include "kvlease/base/hex.h"
#include "kvlease/base/ids.h"
#include "kvlease/base/result.h"
#include "kvlease/base/time.h"

namespace kvlease {

// The largest integer that every parser passes on unchanged: some hold all numbers as doubles.
inline constexpr std::uint64_t kJsonIntegerMax = (std::uint64_t{1} << 53) - 1;

// The longest Duration in milliseconds.
inline constexpr std::uint64_t kMillisecondsMax =
    std::chrono::floor<std::chrono::milliseconds>(kForever).count();

// What an integer field may hold; the field's own type bounds it too.
struct IntegerRange {
  std::uint64_t min = 0;
  std::uint64_t max = kJsonIntegerMax;
};

// What a string field may hold, in words and as a test.
struct TextRule {
  std::string_view allowed;
  bool (*accepts)(std::string_view text);
};

inline constexpr TextRule kAnyText{"a string", [](std::string_view) { return true; }};

// An id that becomes part of agent names (L7).
inline constexpr std::string_view kEngineIdAllowed =
    "a string of 1 to 255 printable ASCII characters without '/'";
bool is_engine_id(std::string_view text);

// `text` as a JSON string, quotes and escapes included.
std::string quoted(std::string_view text);
// `an integer from 1 to 65535`.
std::string integer_allowed(IntegerRange range);

// `"pull", "push"`.
std::string one_of(std::span<const std::string_view> names);

// What a value's text holds; nullopt when it holds something else. An integer may be written as an
// integral double (`5600.0`, `5.6E3`), as proxies do that hold all numbers as doubles.
// Requires: `json` is one value of a text whose syntax was checked.
std::optional<std::uint64_t> json_integer(std::string_view json, IntegerRange range);
std::optional<double> json_number(std::string_view json);
std::optional<bool> json_boolean(std::string_view json);
std::optional<std::string> json_string(std::string_view json);
// The texts of an array's elements.
std::optional<std::vector<std::string_view>> json_array(std::string_view json);

// Whether a field of this type must be there (T) or may be absent or null (std::optional<T>).
template <typename T>
struct FieldType {
  using Value = T;
  static constexpr bool kNeeded = true;
};
template <typename T>
struct FieldType<std::optional<T>> {
  using Value = T;
  static constexpr bool kNeeded = false;
};

// The integral type below an integer or an id.
template <typename T>
struct IntegerRep {
  using type = T;
};
template <typename Tag, typename Rep>
struct IntegerRep<IntId<Tag, Rep>> {
  using type = Rep;
};

// The fields of one object. Each reading method takes a field out and assigns it to `out` when it
// holds what it may; otherwise it leaves `out` alone and keeps the first such problem in the
// `error` that all readers of one text share, so that a decoder checks once, at its end.
class JsonObject {
 public:
  using Fields = std::map<std::string, std::string_view, std::less<>>;

  // Requires: `json` is one value of a text whose syntax was checked; it and `error` outlive the
  // object. `path` names the object in messages ("" for the outermost). Errors: another value than
  // an object, a name that stands twice.
  JsonObject(std::string_view json, std::string path, std::optional<Error>& error);

  template <typename Out>
  void integer(std::string_view name, IntegerRange range, Out& out) {
    using Value = typename FieldType<Out>::Value;
    using Rep = typename IntegerRep<Value>::type;
    range.max = std::min<std::uint64_t>(range.max, std::numeric_limits<Rep>::max());
    const auto convert = [&](std::string_view json) -> std::optional<Value> {
      const std::optional<std::uint64_t> value = json_integer(json, range);
      return value ? std::optional(Value(static_cast<Rep>(*value))) : std::nullopt;
    };
    take(name, FieldType<Out>::kNeeded, integer_allowed(range), convert, out);
  }

  template <typename Out>
  void number(std::string_view name, Out& out) {
    take(name, FieldType<Out>::kNeeded, "a finite number", json_number, out);
  }

  template <typename Out>
  void boolean(std::string_view name, Out& out) {
    take(name, FieldType<Out>::kNeeded, "true or false", json_boolean, out);
  }

  template <typename Out>
  void string(std::string_view name, const TextRule& rule, Out& out) {
    const auto convert =
        [&](std::string_view json) -> std::optional<typename FieldType<Out>::Value> {
      std::optional<std::string> text = json_string(json);
      if (!text || !rule.accepts(*text)) return std::nullopt;
      return typename FieldType<Out>::Value(*std::move(text));
    };
    take(name, FieldType<Out>::kNeeded, rule.allowed, convert, out);
  }

  // One of `names`: the enumerator of that number, or the name itself.
  template <typename Out>
  void choice(std::string_view name, std::span<const std::string_view> names, Out& out) {
    using Value = typename FieldType<Out>::Value;
    const auto convert = [&](std::string_view json) -> std::optional<Value> {
      const std::optional<std::string> text = json_string(json);
      if (!text) return std::nullopt;
      const auto found = std::ranges::find(names, std::string_view(*text));
      if (found == names.end()) return std::nullopt;
      if constexpr (std::is_enum_v<Value>)
        return static_cast<Value>(found - names.begin());
      else
        return Value(*found);
    };
    take(name, FieldType<Out>::kNeeded, one_of(names), convert, out);
  }

  // 16 lowercase hex digits (std::uint64_t or an id of it), twice as many as an array has bytes, or
  // any even number of them (Bytes).
  template <typename Out>
  void hex(std::string_view name, Out& out) {
    take(name, true, hex_allowed<Out>(), from_hex<Out>, out);
  }

  // A field's text; nullopt when it is absent or null, which is an error if it is needed.
  std::optional<std::string_view> take_json(std::string_view name, bool needed,
                                            std::string_view allowed);
  // The elements of an array field; none when it is absent, null or refused.
  std::optional<std::vector<std::string_view>> array(std::string_view name, bool needed,
                                                     std::string_view allowed);
  // An object field; nullopt when it is absent, null or refused.
  std::optional<JsonObject> object(std::string_view name, bool needed);

  // The elements of an array of 1 to `count_max` objects; empty when the field is refused.
  std::vector<JsonObject> objects(std::string_view name, std::size_t count_max);

  // Says that `name`, which may be a path below this object, holds `json` instead of `allowed`.
  void refuse(std::string_view name, std::string_view json, std::string_view allowed);
  // Refuses every field that was not taken out.
  void refuse_rest(std::string_view allowed);
  // What was not taken out, by name.
  const Fields& rest() const { return fields_; }

 private:
  template <typename Convert, typename Out>
  void take(std::string_view name, bool needed, std::string_view allowed, Convert convert,
            Out& out) {
    const std::optional<std::string_view> json = take_json(name, needed, allowed);
    if (!json) return;
    auto value = convert(*json);
    if (!value) {
      refuse(name, *json, allowed);
    } else if constexpr (FieldType<Out>::kNeeded) {
      out = *std::move(value);
    } else {
      out = std::move(value);
    }
  }

  template <typename Out>
  static std::string hex_allowed() {
    if constexpr (std::is_same_v<Out, Bytes>)
      return "a string of lowercase hex digits in pairs";
    else
      return "a string of " + std::to_string(2 * sizeof(Out)) + " lowercase hex digits";
  }

  template <typename Out>
  static std::optional<Out> from_hex(std::string_view json) {
    const std::optional<std::string> text = json_string(json);
    if (!text) return std::nullopt;
    if constexpr (std::is_same_v<Out, Bytes>) {
      return hex_to_bytes(*text);
    } else if constexpr (std::is_constructible_v<Out, std::uint64_t>) {
      const std::optional<std::uint64_t> value = hex_to_u64(*text);
      return value ? std::optional<Out>(Out(*value)) : std::nullopt;
    } else {
      const std::optional<Bytes> bytes = hex_to_bytes(*text);
      Out array{};
      if (!bytes || bytes->size() != array.size()) return std::nullopt;
      std::ranges::copy(*bytes, array.begin());
      return array;
    }
  }

  std::string path_of(std::string_view name) const;
  void fail(std::string message);

  Fields fields_;
  std::string path_;
  std::optional<Error>* error_;
};

// Checks the syntax of all of `text` and opens its outermost object.
// Errors (in `error`, kInvalidArgument; the object is empty then): more than `bytes_max` bytes, no
// JSON, depth over 32, no object. `what` names the text in messages.
JsonObject open_json(std::string_view text, std::size_t bytes_max, std::string_view what,
                     std::optional<Error>& error);

// Writes one object as compact text. Fields stand in the order of the calls; an empty optional
// writes nothing.
class JsonWriter {
 public:
  void json(std::string_view name, std::string_view value);
  void null(std::string_view name) { json(name, "null"); }
  void integer(std::string_view name, std::uint64_t value) { json(name, std::to_string(value)); }
  void boolean(std::string_view name, bool value) { json(name, value ? "true" : "false"); }
  void string(std::string_view name, std::string_view value);
  // Requires: finite.
  void number(std::string_view name, double value);
  void hex(std::string_view name, std::uint64_t value) { string(name, to_hex(value)); }
  void hex(std::string_view name, std::span<const std::byte> bytes) { string(name, to_hex(bytes)); }

  template <typename Tag>
  void string(std::string_view name, const StringId<Tag>& id) {
    string(name, std::string_view(id.str()));
  }

  template <typename T>
  void integer(std::string_view name, const std::optional<T>& value) {
    if (value) integer(name, std::uint64_t{*value});
  }
  template <typename T>
  void string(std::string_view name, const std::optional<T>& value) {
    if (value) string(name, *value);
  }
  void number(std::string_view name, const std::optional<double>& value) {
    if (value) number(name, *value);
  }

  // All fields of an object's text. Requires: an object, or no text at all.
  void fields_of(std::string_view object);

  std::string take();

 private:
  std::string text_ = "{";
};

// `[a,b,…]`, each element as `to_json` writes it.
template <typename Range, typename ToJson>
std::string json_array_of(const Range& range, ToJson to_json) {
  std::string text = "[";
  for (const auto& element : range) {
    if (text.size() > 1) text += ',';
    text += to_json(element);
  }
  return text + "]";
}

}  // namespace kvlease
