// Implements top_frame.h: three tables (instances, leases, events) that give up columns when it is
// narrow and rows when it is low.
#include "kvlease/obs/top_frame.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "kvlease/obs/printable.h"

namespace kvlease {
namespace {

constexpr std::size_t kEventsOnce = 20;  // when nothing bounds the height
constexpr std::size_t kTextBytesMax = 512;
constexpr std::string_view kGap = "  ";

enum class Style : std::uint8_t { kPlain, kBold, kDim, kGood, kWarning, kBad, kTitle };

std::string_view sgr(Style style) {
  switch (style) {
    case Style::kPlain:
      return "";
    case Style::kBold:
      return "\x1b[1m";
    case Style::kDim:
      return "\x1b[2m";
    case Style::kGood:
      return "\x1b[32m";
    case Style::kWarning:
      return "\x1b[33m";
    case Style::kBad:
      return "\x1b[31m";
    case Style::kTitle:
      return "\x1b[7m";
  }
  return "";
}

// What fills a part of a line. Text that is too long is cut, too short filled up with blanks.
struct Cell {
  std::string text;
  Style style = Style::kPlain;
};

struct Column {
  std::string title;
  std::size_t width = 0;  // of a flexible one: at least
  bool right = false;
  // Columns of the highest number are given up first; 0: never.
  int dispensable = 0;
  std::size_t flexible_max = 0;  // 0: as wide as it is
};

class Frame {
 public:
  explicit Frame(const TopFrameOptions& options) : options_(options) {}

  // How many lines there is still room for.
  std::size_t room() const {
    return options_.height == 0 ? SIZE_MAX : options_.height - std::min(options_.height, lines_);
  }

  void line(std::vector<Cell> cells) {
    if (room() == 0) return;
    std::size_t used = 0;
    for (const Cell& cell : cells) used += put(cell, options_.width - used);
    while (text_.ends_with(' ')) text_.pop_back();
    text_ += '\n';
    ++lines_;
  }

  std::string take() { return std::move(text_); }

 private:
  // Returns how many columns it took.
  std::size_t put(const Cell& cell, std::size_t width_max) {
    const std::string shown = printable(cell.text, kTextBytesMax).substr(0, width_max);
    const bool styled = options_.color && cell.style != Style::kPlain;
    if (styled) text_ += sgr(cell.style);
    text_ += shown;
    if (styled) text_ += "\x1b[0m";
    return shown.size();
  }

  TopFrameOptions options_;
  std::size_t lines_ = 0;
  std::string text_;
};

std::string fitted(const std::string& text, std::size_t width, bool right) {
  if (text.size() > width) return width > 3 ? printable(text, width) : text.substr(0, width);
  const std::string blanks(width - text.size(), ' ');
  return right ? blanks + text : text + blanks;
}

// A table whose columns were fitted into a width.
class Table {
 public:
  Table(std::vector<Column> columns, std::size_t width) : columns_(std::move(columns)) {
    used_.resize(columns_.size(), true);
    while (least() > width && give_one_up()) {
    }
    std::size_t left = width - std::min(width, least());
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      if (!used_[i] || columns_[i].flexible_max == 0) continue;
      const std::size_t more = std::min(left, columns_[i].flexible_max - columns_[i].width);
      columns_[i].width += more;
      left -= more;
    }
  }

  std::size_t width(std::size_t column) const { return used_[column] ? columns_[column].width : 0; }

  void title(Frame& frame) const {
    std::vector<Cell> cells;
    for (const Column& column : columns_) cells.push_back({column.title, Style::kDim});
    row(frame, std::move(cells));
  }

  // Requires: a cell a column.
  void row(Frame& frame, std::vector<Cell> cells) const {
    std::vector<Cell> line;
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      if (!used_[i]) continue;
      if (!line.empty()) line.push_back({std::string(kGap)});
      cells[i].text = fitted(cells[i].text, columns_[i].width, columns_[i].right);
      line.push_back(std::move(cells[i]));
    }
    frame.line(std::move(line));
  }

 private:
  std::size_t least() const {
    std::size_t sum = 0;
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      if (used_[i]) sum += columns_[i].width + (sum > 0 ? kGap.size() : 0);
    }
    return sum;
  }

  bool give_one_up() {
    std::size_t first = columns_.size();
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      if (!used_[i] || columns_[i].dispensable == 0) continue;
      if (first == columns_.size() || columns_[i].dispensable > columns_[first].dispensable)
        first = i;
    }
    if (first == columns_.size()) return false;
    used_[first] = false;
    return true;
  }

  std::vector<Column> columns_;
  std::vector<bool> used_;
};

// The longest of some texts, within limits.
template <typename Range, typename Text>
std::size_t longest(const Range& range, std::size_t min, std::size_t max, Text text) {
  std::size_t width = min;
  for (const auto& element : range) width = std::max(width, text(element).size());
  return std::min(width, max);
}

std::string formatted(const char* format, double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), format, value);
  return text.data();
}

std::string shown_seconds(double seconds) {
  if (!(seconds >= 0)) return "0.0s";
  if (seconds < 9.95) return formatted("%.1fs", seconds);
  if (seconds < 99.5) return formatted("%.0fs", seconds);
  if (seconds < 5970) return formatted("%.0fm", seconds / 60);
  if (seconds < 169'200) return formatted("%.0fh", seconds / 3600);
  if (seconds < 1e8) return formatted("%.0fd", seconds / 86'400);
  return "never";
}

std::string shown_count(std::uint64_t count) {
  const auto value = static_cast<double>(count);
  if (count < 10'000) return std::to_string(count);
  if (value < 999'500) return formatted("%.0fk", value / 1e3);
  if (value < 99'950'000) return formatted("%.1fM", value / 1e6);
  if (value < 999.5e6) return formatted("%.0fM", value / 1e6);
  return formatted("%.1fG", value / 1e9);
}

std::string shown_role(const InstanceRow& row) {
  if (!row.role.empty()) return row.role;
  if (!row.view) return "";
  if (row.view->role == "kv_producer") return "prefill";
  if (row.view->role == "kv_consumer") return "decode";
  return "both";
}

// The blocks of an instance, each state by its share of `width`; what is not none gets at least one
// character.
std::string blocks_bar(const BlocksView& blocks, std::size_t width) {
  const std::uint64_t computing = blocks.in_use - std::min(blocks.in_use, blocks.leased);
  const std::pair<char, std::uint64_t> parts[] = {{'#', blocks.leased},
                                                  {'=', computing},
                                                  {'!', blocks.quarantined},
                                                  {'+', blocks.cached},
                                                  {'.', blocks.free}};
  double all = 0;
  for (const auto& [sign, count] : parts) all += static_cast<double>(count);
  if (all == 0) return std::string(width, ' ');
  std::string bar;
  for (const auto& [sign, count] : parts) {
    const double share = static_cast<double>(count) / all * static_cast<double>(width);
    const auto cells = std::max(static_cast<std::size_t>(share + 0.5), std::size_t{count > 0});
    bar.append(std::min(cells, width - bar.size()), sign);
  }
  return bar.append(width - bar.size(), bar.back());
}

std::string shown_leased(const InstanceRow& row) {
  if (!row.view) return "";
  const BlocksView& blocks = row.view->blocks;
  return shown_count(blocks.leased) + "/" + shown_count(blocks.all());
}

Style state_style(std::string_view status) {
  if (status == "ready") return Style::kGood;
  return Style::kWarning;
}

void put_head(Frame& frame, const ClusterView& view, const TopFrameOptions& options) {
  std::size_t answer = 0;
  BlocksView blocks;
  for (const InstanceRow& row : view.instances) {
    if (!row.view) continue;
    ++answer;
    blocks.leased += row.view->blocks.leased;
    blocks.free += row.view->blocks.all();
  }
  const std::string head =
      " kvlease top  " + std::to_string(answer) + " of " + std::to_string(view.instances.size()) +
      " instances, " + shown_count(leases_live(view)) + " leases, " + shown_count(blocks.leased) +
      " of " + shown_count(blocks.free) + " blocks leased";
  const std::string keys = options.interactive ? "q quits " : "";
  const std::size_t used = std::min(options.width, head.size() + keys.size());
  frame.line({{head + std::string(options.width - used, ' ') + keys, Style::kTitle}});
}

void put_instances(Frame& frame, const ClusterView& view, std::size_t width) {
  const std::size_t name_width = longest(view.instances, 8, 24, [](const InstanceRow& row) {
    return row.view ? shown_name(row) : std::string();
  });
  const std::size_t url_width = longest(view.instances, 8, 32, shown_url);
  const std::size_t leased_width = longest(view.instances, 6, 13, shown_leased);
  const Table table({{.title = "INSTANCE", .width = name_width},
                     {.title = "ADDRESS", .width = url_width, .dispensable = 5},
                     {.title = "ROLE", .width = 7, .dispensable = 3},
                     {.title = "STATE", .width = 8},
                     {.title = "BLOCKS", .width = 10, .dispensable = 2, .flexible_max = 48},
                     {.title = "LEASED", .width = leased_width, .right = true, .dispensable = 1},
                     {.title = "RUN", .width = 4, .right = true},
                     {.title = "WAIT", .width = 4, .right = true},
                     {.title = "PEERS", .width = 5, .right = true, .dispensable = 7},
                     {.title = "PROMPT", .width = 6, .right = true, .dispensable = 6},
                     {.title = "CACHED", .width = 6, .right = true, .dispensable = 6},
                     {.title = "OUTPUT", .width = 6, .right = true, .dispensable = 6}},
                    width);
  table.title(frame);
  const std::size_t names = table.width(1) == 0 ? name_width : name_width + 2 + table.width(1);
  for (const InstanceRow& row : view.instances) {
    if (!row.view) {
      const std::string url = printable(shown_url(row), kTextBytesMax);
      frame.line({{fitted(url, std::max(url.size(), names), false)},
                  {std::string(kGap) + fitted(row.role, 7, false) + std::string(kGap)},
                  {row.problem.empty() ? "not asked yet" : row.problem, Style::kBad}});
      continue;
    }
    const InstanceView& seen = *row.view;
    table.row(frame, {{shown_name(row), Style::kBold},
                      {shown_url(row)},
                      {shown_role(row)},
                      {seen.status, state_style(seen.status)},
                      {blocks_bar(seen.blocks, table.width(4))},
                      {shown_leased(row)},
                      {shown_count(seen.running)},
                      {shown_count(seen.waiting + seen.waiting_for_remote_kvs)},
                      {shown_count(seen.known_peers)},
                      {shown_count(seen.prompt_tokens)},
                      {shown_count(seen.cached_tokens)},
                      {shown_count(seen.generated_tokens)}});
  }
  if (table.width(4) > 0 && !view.instances.empty()) {
    frame.line({{"# leased  = computing  + cached  . free  ! quarantined", Style::kDim}});
  }
}

using LeaseRow = Placed<LeaseView>;
using EventRow = Placed<EventView>;

std::string shown_reader(const LeaseRow& row) {
  const std::string reader = row.element->reader.empty() ? "-" : row.element->reader;
  return row.element->hold ? "hold " + reader : reader;
}

Style slack_style(const LeaseView& lease) {
  if (lease.slack_s < lease.duration_s / 8) return Style::kBad;
  return lease.slack_s < lease.duration_s / 3 ? Style::kWarning : Style::kPlain;
}

// `live`: all that there are, of which not all may be listed or have room.
void put_leases(Frame& frame, std::span<const LeaseRow> leases, std::uint64_t live,
                std::size_t width) {
  const std::string of =
      live == leases.size() ? "" : " " + shown_count(leases.size()) + "/" + shown_count(live);
  const std::size_t id_width =
      longest(leases, 16, 160, [](const LeaseRow& row) { return row.element->id; });
  const std::size_t name_width =
      longest(leases, 7, 24, [](const LeaseRow& row) { return shown_name(*row.instance); });
  const std::size_t reader_width = longest(leases, 6, 24, shown_reader);
  const Table table({{.title = "LEASE" + of, .width = 16, .flexible_max = id_width},
                     {.title = "HELD BY", .width = name_width, .dispensable = 2},
                     {.title = "READER", .width = reader_width, .dispensable = 1},
                     {.title = "BLOCKS", .width = 6, .right = true, .dispensable = 4},
                     {.title = "AGE", .width = 5, .right = true, .dispensable = 3},
                     {.title = "EXPIRES IN", .width = 10, .right = true}},
                    width);
  table.title(frame);
  for (const LeaseRow& row : leases) {
    const LeaseView& lease = *row.element;
    table.row(frame, {{lease.id},
                      {shown_name(*row.instance)},
                      {shown_reader(row)},
                      {shown_count(lease.blocks)},
                      {shown_seconds(lease.age_s)},
                      {shown_seconds(lease.slack_s), slack_style(lease)}});
  }
}

// What the counts of the events are counts of.
std::string_view unit_of(std::string_view event) {
  constexpr std::pair<std::string_view, std::string_view> units[] = {
      {"lease_granted", "blocks"}, {"lease_ended", "blocks"}, {"read_posted", "blocks"},
      {"read_validated", "bytes"}, {"quarantined", "blocks"}, {"quiet", "blocks"},
      {"events_missed", "events"},
  };
  for (const auto& [name, unit] : units) {
    if (name == event) return unit;
  }
  return "";
}

std::string event_text(const EventView& event) {
  std::string text;
  const auto add = [&](const std::string& part) {
    if (!part.empty()) text += (text.empty() ? "" : "  ") + part;
  };
  add(event.lease.empty() ? event.request : event.lease);
  add(event.peer);
  add(event.detail);
  if (event.count > 0) {
    const std::string_view unit = unit_of(event.event);
    add(shown_count(event.count) + (unit.empty() ? "" : " ") + std::string(unit));
  }
  if (event.length_s > 0) add(shown_seconds(event.length_s));
  return text;
}

Style event_style(std::string_view event) {
  constexpr std::string_view bad[] = {"handshake_failed", "read_rejected", "lease_lost",
                                      "load_failed",      "peer_suspect",  "notif_rejected",
                                      "events_missed"};
  return std::ranges::find(bad, event) != std::end(bad) ? Style::kWarning : Style::kPlain;
}

void put_events(Frame& frame, std::span<const EventRow> events, std::size_t width) {
  const std::size_t name_width =
      longest(events, 5, 16, [](const EventRow& row) { return shown_name(*row.instance); });
  const Table table({{.title = "AGO", .width = 5, .right = true},
                     {.title = "WHERE", .width = name_width},
                     {.title = "EVENT", .width = 17},
                     {.title = "WHAT", .width = 16, .dispensable = 1, .flexible_max = SIZE_MAX}},
                    width);
  table.title(frame);
  for (const EventRow& row : events) {
    const EventView& event = *row.element;
    table.row(frame, {{shown_seconds(event.age_s)},
                      {shown_name(*row.instance)},
                      {event.event, event_style(event.event)},
                      {event_text(event)}});
  }
}

}  // namespace

std::string top_frame(const ClusterView& view, const TopFrameOptions& options) {
  Frame frame(options);
  put_head(frame, view, options);
  put_instances(frame, view, options.width);

  const std::vector<LeaseRow> leases = leases_by_slack(view);
  const std::vector<EventRow> events = newest_events(view);
  const std::size_t titles = 4;  // of both tables, and a blank line before each
  std::size_t leases_shown = leases.size();
  std::size_t events_shown = std::min(events.size(), kEventsOnce);
  if (options.height > 0) {
    const std::size_t rows = frame.room() - std::min(frame.room(), titles);
    events_shown = std::min(events.size(), rows - std::min(leases.size(), rows / 2));
    leases_shown = std::min(leases.size(), rows - events_shown);
  }
  frame.line({});
  put_leases(frame, std::span(leases).first(leases_shown), leases_live(view), options.width);
  frame.line({});
  put_events(frame, std::span(events).first(events_shown), options.width);
  return frame.take();
}

}  // namespace kvlease
