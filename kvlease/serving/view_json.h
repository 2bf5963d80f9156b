// The views of obs/cluster_view.h as JSON: what an instance answers to those who watch it, and what
// they make of the answer, which may come from anybody.
#pragma once

#include <string>
#include <string_view>

#include "kvlease/base/result.h"
#include "kvlease/obs/cluster_view.h"

namespace kvlease {

// Where an instance answers with what.
inline constexpr std::string_view kLeasesPath = "/kvlease/v1/leases";
inline constexpr std::string_view kEventsPath = "/kvlease/v1/events";

// Of one answer (L43).
inline constexpr std::size_t kLeasesListedMax = 256;
inline constexpr std::size_t kEventsKept = 256;
inline constexpr std::size_t kViewBytesMax = std::size_t{1} << 20;

// Objects; the instance adds to the first what only machines ask for.
std::string to_json(const InstanceView& view);
std::string to_json(const EventsView& view);
std::string to_json(const LeaseView& lease);
std::string to_json(const EventView& event);

// Fields that nobody knows are passed over; texts are made printable; of longer lists the first
// elements are taken. Errors: kInvalidArgument with the field, for what is not such an answer.
Result<InstanceView> parse_instance_view(std::string_view json);
Result<EventsView> parse_events_view(std::string_view json);

}  // namespace kvlease
