"""What an ordinary OpenAI client asks of an instance or a router, and what it must get.

Usage: openai_client.py BASE_URL API_KEY PROMPT EXPECTED_TEXT. Exit code 0 when all answers are right.
"""

import sys

import openai


def check(name: str, got, want) -> None:
    if got != want:
        sys.exit(f"{name}: got {got!r}, want {want!r}")


def check_completions(client: openai.OpenAI, prompt: str, text: str) -> None:
    whole = client.completions.create(model="synthetic", prompt=prompt, max_tokens=len(text))
    check("text", whole.choices[0].text, text)
    check("finish_reason", whole.choices[0].finish_reason, "length")
    check("completion_tokens", whole.usage.completion_tokens, len(text))
    chunks = list(client.completions.create(
        model="synthetic", prompt=prompt, max_tokens=len(text), stream=True,
        stream_options={"include_usage": True}))
    check("streamed text", "".join(c.choices[0].text for c in chunks if c.choices), text)
    check("usage of the stream", chunks[-1].usage, whole.usage.model_copy(
        update={"prompt_tokens_details": chunks[-1].usage.prompt_tokens_details}))


def check_chat(client: openai.OpenAI, prompt: str) -> None:
    messages = [{"role": "system", "content": "You are terse."},
                {"role": "user", "content": [{"type": "text", "text": prompt}]}]
    whole = client.chat.completions.create(model="synthetic", messages=messages,
                                           max_completion_tokens=20)
    text = whole.choices[0].message.content
    check("role", whole.choices[0].message.role, "assistant")
    check("length of the chat's text", len(text) > 0, True)
    deltas = [chunk.choices[0].delta for chunk in client.chat.completions.create(
        model="synthetic", messages=messages, max_completion_tokens=20, stream=True)
        if chunk.choices]
    check("streamed role", deltas[0].role, "assistant")
    check("streamed chat", "".join(delta.content or "" for delta in deltas), text)


def check_errors(client: openai.OpenAI, base_url: str) -> None:
    try:
        client.completions.create(model="synthetic", prompt="a", max_tokens=-1)
        sys.exit("max_tokens=-1 was taken")
    except openai.BadRequestError as error:
        check("the field named", "max_tokens" in error.message, True)
    try:
        openai.OpenAI(base_url=base_url, api_key="wrong", max_retries=0).models.list()
        sys.exit("a wrong API key was taken")
    except openai.AuthenticationError:
        pass


def main() -> None:
    base_url, api_key, prompt, text = sys.argv[1:]
    client = openai.OpenAI(base_url=base_url, api_key=api_key, max_retries=0, timeout=30)
    check("models", [model.id for model in client.models.list()], ["synthetic"])
    check_completions(client, prompt, text)
    check_chat(client, prompt)
    check_errors(client, base_url)


main()
