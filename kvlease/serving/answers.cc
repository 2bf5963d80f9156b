// Implements answers.h.
#include "kvlease/serving/answers.h"

#include <utility>

#include "kvlease/base/check.h"
#include "kvlease/wire/json_fields.h"

namespace kvlease {
namespace {

// As vLLM and the OpenAI API name them.
std::string_view error_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 404:
      return "not_found_error";
    case 503:
      return "service_unavailable";
    default:
      return status < 500 ? "invalid_request_error" : "internal_server_error";
  }
}

// The first `name` in quotes of a message: the field that it is about.
std::string_view field_named(std::string_view message) {
  const std::size_t begin = message.find('`');
  if (begin == std::string_view::npos) return "";
  const std::size_t end = message.find('`', begin + 1);
  return end == std::string_view::npos ? "" : message.substr(begin + 1, end - begin - 1);
}

// L43
HttpResponse with_retry_after(HttpResponse response) {
  if (response.status == 503) response.headers.add("Retry-After", "1");
  return response;
}

}  // namespace

HttpResponse json_response(int status, std::string body) {
  return {
      .status = status, .headers = {{"Content-Type", "application/json"}}, .body = std::move(body)};
}

HttpResponse health_response(bool draining) {
  return json_response(200, draining ? R"({"status":"draining"})" : R"({"status":"ok"})");
}

HttpResponse ready_response(bool ready, std::string body) {
  return with_retry_after(json_response(ready ? 200 : 503, std::move(body)));
}

HttpResponse metrics_response(std::string text) {
  return {.status = 200,
          .headers = {{"Content-Type", "text/plain; version=0.0.4; charset=utf-8"}},
          .body = std::move(text)};
}

int http_status(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kInvalidReference:
    case ErrorCode::kStaleReference:
      return 400;
    case ErrorCode::kPermissionDenied:
      return 401;
    case ErrorCode::kNotFound:
      return 404;
    case ErrorCode::kIncompatible:
      return 409;
    case ErrorCode::kResourceExhausted:
    case ErrorCode::kUnavailable:
      return 503;
    case ErrorCode::kTimeout:
      return 504;
    case ErrorCode::kSuspectPeer:
      return 502;
  }
  KVL_UNREACHABLE("every code has its status");
}

std::string error_body(const Error& error, int status) {
  JsonWriter inner;
  inner.string("message", error.message);
  inner.string("type", error_type(status));
  if (const std::string_view field = field_named(error.message); !field.empty() && status == 400) {
    inner.string("param", field);
  } else {
    inner.null("param");
  }
  inner.integer("code", static_cast<std::uint64_t>(status));
  JsonWriter body;
  body.json("error", inner.take());
  return body.take();
}

HttpResponse error_response(const Error& error) {
  return error_response(error, http_status(error.code));
}

HttpResponse error_response(const Error& error, int status) {
  return with_retry_after(json_response(status, error_body(error, status)));
}

HttpResponse draining_response(std::string_view who) {
  const Error error{ErrorCode::kUnavailable, "this " + std::string(who) + " is draining"};
  return json_response(503, error_body(error, 503));
}

HttpResponse http_refusal(int status, std::string_view message) {
  return error_response({ErrorCode::kInvalidArgument, std::string(message)}, status);
}

HttpResponse no_such_route(const HttpRequest& request) {
  return error_response(
      {ErrorCode::kNotFound, "no such route: " + request.method + ' ' + request.path});
}

HttpResponse no_such_method(const HttpRequest& request, std::string_view allow) {
  HttpResponse response = error_response(
      {ErrorCode::kInvalidArgument,
       request.path + " does not know " + request.method + "; allowed: " + std::string(allow)},
      405);
  response.headers.add("Allow", std::string(allow));
  return response;
}

}  // namespace kvlease
