// What instances and the router answer over HTTP: JSON, and errors in vLLM's form.
#pragma once

#include <string>
#include <string_view>

#include "kvlease/base/result.h"
#include "kvlease/runtime/http.h"

namespace kvlease {

HttpResponse json_response(int status, std::string body);

// What both answer to GET /health, /health/ready and /metrics; not ready: 503, come again (L43).
HttpResponse health_response(bool draining);
HttpResponse ready_response(bool ready, std::string body);
HttpResponse metrics_response(std::string text);

// The one table from error codes to HTTP statuses.
int http_status(ErrorCode code);
// vLLM's nested form {"error": {"message", "type", "param", "code"}}.
std::string error_body(const Error& error, int status);
// Both; a 503 says when to come again (L43).
HttpResponse error_response(const Error& error);
HttpResponse error_response(const Error& error, int status);
// What the HTTP server answers of itself, in the same form.
HttpResponse http_refusal(int status, std::string_view message);

// 503 of an instance or a router that takes no new work any more. Without Retry-After, which says
// that this same server is only busy: a router does without it at once (L36).
HttpResponse draining_response(std::string_view who);

// 404 and 405; `allow` lists the methods that the path knows, as in its header.
HttpResponse no_such_route(const HttpRequest& request);
HttpResponse no_such_method(const HttpRequest& request, std::string_view allow);

}  // namespace kvlease
