// Implements json_fields.h: the only file that includes Boost.JSON in this room.
#include "kvlease/wire/json_fields.h"

#include <boost/json.hpp>
#include <charconv>
#include <cmath>

#include "kvlease/base/check.h"
#include "kvlease/base/text.h"

namespace kvlease {
namespace {

constexpr std::size_t kDepthMax = 32;
constexpr std::size_t kShownBytesMax = 64;
constexpr std::string_view kSpace = " \t\n\r";

boost::json::value parse_with_boost(std::string_view text, boost::json::error_code& problem) {
  boost::json::parse_options options;
  options.max_depth = kDepthMax;
  return boost::json::parse(text, problem, {}, options);
}

// The value as messages show it: cut, and without what could disturb a log.
std::string shown(std::string_view json) {
  std::string text(json.substr(0, kShownBytesMax));
  std::ranges::replace_if(text, [](char c) { return c < ' ' || c > '~'; }, '?');
  if (json.size() > kShownBytesMax) text += "…";
  return text;
}

std::string_view trim(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
}

// The place of the closing quote of the string that opens at `open`.
std::size_t string_end(std::string_view json, std::size_t open) {
  std::size_t at = open + 1;
  while (json[at] != '"') at += json[at] == '\\' ? 2 : 1;
  return at;
}

// The pieces between the outermost commas of an array's or object's text.
std::vector<std::string_view> split(std::string_view json) {
  std::vector<std::string_view> pieces;
  const std::string_view inside = trim(json.substr(1, json.size() - 2));
  std::size_t begin = 0;
  std::size_t depth = 0;
  for (std::size_t at = 0; at < inside.size(); ++at) {
    const char c = inside[at];
    if (c == '"') at = string_end(inside, at);
    if (c == '[' || c == '{') ++depth;
    if (c == ']' || c == '}') --depth;
    if (c == ',' && depth == 0) {
      pieces.push_back(trim(inside.substr(begin, at - begin)));
      begin = at + 1;
    }
  }
  if (!inside.empty()) pieces.push_back(trim(inside.substr(begin)));
  return pieces;
}

}  // namespace

bool is_engine_id(std::string_view text) {
  return !text.empty() && text.size() <= 255 && is_printable_ascii(text) &&
         text.find('/') == std::string_view::npos;
}

std::string quoted(std::string_view text) { return boost::json::serialize(text); }

std::string integer_allowed(IntegerRange range) {
  if (range.min == range.max) return std::to_string(range.min);
  return "an integer from " + std::to_string(range.min) + " to " + std::to_string(range.max);
}

std::string one_of(std::span<const std::string_view> names) {
  std::string text;
  for (const std::string_view name : names) {
    if (!text.empty()) text += ", ";
    text += quoted(name);
  }
  return text;
}

std::optional<std::uint64_t> json_integer(std::string_view json, IntegerRange range) {
  std::optional<std::uint64_t> value = parse_number<std::uint64_t>(json);
  if (!value) {
    const std::optional<double> number = json_number(json);
    if (!number || *number < 0 || *number > double{kJsonIntegerMax}) return std::nullopt;
    value = static_cast<std::uint64_t>(*number);
    if (static_cast<double>(*value) != *number) return std::nullopt;
  }
  return *value >= range.min && *value <= range.max ? value : std::nullopt;
}

std::optional<double> json_number(std::string_view json) {
  const std::optional<double> value = parse_number<double>(json);
  return value && std::isfinite(*value) ? value : std::nullopt;
}

std::optional<bool> json_boolean(std::string_view json) {
  if (json == "true") return true;
  if (json == "false") return false;
  return std::nullopt;
}

std::optional<std::string> json_string(std::string_view json) {
  if (!json.starts_with('"')) return std::nullopt;
  if (json.find('\\') == std::string_view::npos)
    return std::string(json.substr(1, json.size() - 2));
  boost::json::error_code problem;
  const boost::json::value value = parse_with_boost(json, problem);
  const boost::json::string* const text = value.if_string();
  KVL_CHECK(text, "the syntax was checked before");
  return std::string(text->data(), text->size());
}

std::optional<std::vector<std::string_view>> json_array(std::string_view json) {
  if (!json.starts_with('[')) return std::nullopt;
  return split(json);
}

JsonObject::JsonObject(std::string_view json, std::string path, std::optional<Error>& error)
    : path_(std::move(path)), error_(&error) {
  if (!json.starts_with('{')) {
    refuse("", json, "an object");
    return;
  }
  for (const std::string_view piece : split(json)) {
    const std::size_t quote = string_end(piece, 0);
    std::string name = *json_string(piece.substr(0, quote + 1));
    const std::string_view value = trim(piece.substr(piece.find(':', quote) + 1));
    if (const auto [known, added] = fields_.emplace(std::move(name), value); !added) {
      refuse(known->first, value, "each field once");
    }
  }
}

std::optional<std::vector<std::string_view>> JsonObject::array(std::string_view name, bool needed,
                                                               std::string_view allowed) {
  std::optional<std::vector<std::string_view>> elements;
  take(name, needed, allowed, json_array, elements);
  return elements;
}

std::optional<JsonObject> JsonObject::object(std::string_view name, bool needed) {
  const std::optional<std::string_view> json = take_json(name, needed, "an object");
  if (!json) return std::nullopt;
  return JsonObject(*json, path_of(name), *error_);
}

std::vector<JsonObject> JsonObject::objects(std::string_view name, std::size_t count_max) {
  const std::string allowed = "an array of 1 to " + std::to_string(count_max) + " objects";
  std::vector<JsonObject> opened;
  const auto elements = array(name, true, allowed);
  if (!elements) return opened;
  if (elements->empty() || elements->size() > count_max) {
    refuse(name, "an array of " + std::to_string(elements->size()), allowed);
    return opened;
  }
  opened.reserve(elements->size());
  for (const std::string_view json : *elements) {
    std::string path = path_of(name) + "[" + std::to_string(opened.size()) + "]";
    opened.emplace_back(json, std::move(path), *error_);
  }
  return opened;
}

void JsonObject::refuse(std::string_view name, std::string_view json, std::string_view allowed) {
  fail("`" + path_of(name) + "` is " + shown(json) + "; allowed: " + std::string(allowed));
}

void JsonObject::refuse_rest(std::string_view allowed) {
  for (const auto& [name, json] : fields_) {
    fail("`" + path_of(shown(name)) + "` is unknown; allowed: " + std::string(allowed));
  }
}

std::optional<std::string_view> JsonObject::take_json(std::string_view name, bool needed,
                                                      std::string_view allowed) {
  const auto field = fields_.find(name);
  const bool there = field != fields_.end();
  const std::string_view json = there ? field->second : "null";
  if (there) fields_.erase(field);
  if (json != "null") return json;
  if (needed) {
    fail("`" + path_of(name) + "` is " + (there ? "null" : "missing") +
         "; allowed: " + std::string(allowed));
  }
  return std::nullopt;
}

std::string JsonObject::path_of(std::string_view name) const {
  if (path_.empty() || name.empty()) return path_ + std::string(name);
  return path_ + "." + std::string(name);
}

void JsonObject::fail(std::string message) {
  if (!*error_) *error_ = Error{ErrorCode::kInvalidArgument, std::move(message)};
}

JsonObject open_json(std::string_view text, std::size_t bytes_max, std::string_view what,
                     std::optional<Error>& error) {
  const auto refused = [&](const std::string& words) {
    error = Error{ErrorCode::kInvalidArgument, std::string(what) + " " + words};
    return JsonObject("{}", std::string(what), error);
  };
  if (text.size() > bytes_max) {
    return refused("has " + std::to_string(text.size()) + " bytes; allowed: at most " +
                   std::to_string(bytes_max));
  }
  boost::json::error_code problem;
  const boost::json::value checked = parse_with_boost(text, problem);
  if (problem) return refused("is no JSON: " + problem.message());
  if (!checked.is_object()) return refused("is " + shown(trim(text)) + "; allowed: an object");
  return JsonObject(trim(text), "", error);
}

void JsonWriter::json(std::string_view name, std::string_view value) {
  if (text_.size() > 1) text_ += ',';
  text_ += quoted(name);
  text_ += ':';
  text_ += value;
}

void JsonWriter::string(std::string_view name, std::string_view value) {
  json(name, quoted(value));
}

void JsonWriter::number(std::string_view name, double value) {
  KVL_CHECK(std::isfinite(value), "JSON has no infinity and no NaN");
  std::array<char, 32> digits{};
  const auto [end, status] = std::to_chars(digits.data(), digits.data() + digits.size(), value);
  KVL_CHECK(status == std::errc{}, "the shortest form of a double has at most 24 characters");
  json(name, std::string_view(digits.data(), end));
}

void JsonWriter::fields_of(std::string_view object) {
  if (object.empty()) return;
  for (const std::string_view field : split(object)) {
    if (text_.size() > 1) text_ += ',';
    text_ += field;
  }
}

std::string JsonWriter::take() { return std::move(text_) + "}"; }

}  // namespace kvlease
