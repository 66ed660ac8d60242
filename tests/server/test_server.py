"""The server over the embedded pair: answers, refusals, rubbish, and who may ask."""

import json
import threading

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from edgespec.errors import UsageError
from edgespec.server.guarding import Guard
from sentences import hold_sentence, refuses
from server_running import serving

MESSAGES = [{"role": "user", "content": "write gcd"}]
ASK = {"messages": MESSAGES, "max_tokens": 6}
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def address(session):
    with serving(session, max_body=4 << 20) as running:
        yield running


@pytest.fixture(scope="module")
def client(address):
    with httpx.Client(base_url=address, timeout=60) as http:
        yield http


@pytest.fixture(scope="module")
def official(address):
    import openai  # two seconds, in every process that collects tests

    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as api:
        yield api


def refused(response: httpx.Response, status: int) -> str:
    """The message of a refusal in OpenAI's shape."""
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error["message"]


def test_the_official_client_gets_what_the_session_writes(official, session):
    answer = official.chat.completions.create(model="pair", messages=MESSAGES, max_tokens=12)
    with session.chat(MESSAGES, max_tokens=12) as generation:
        text = "".join(event.text for event in generation)
    assert answer.choices[0].message.content == text
    assert answer.usage.completion_tokens == 12


def test_the_official_client_streams(official):
    whole = official.chat.completions.create(
        model="pair", messages=MESSAGES, max_tokens=12, temperature=0.9, seed=5
    )
    chunks = list(
        official.chat.completions.create(
            model="pair",
            messages=MESSAGES,
            max_tokens=12,
            temperature=0.9,
            seed=5,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == chunks[-1].timings["predicted_n"] == 12


def test_the_official_client_gets_copies_with_seeds_of_their_own(official):
    warm = {"model": "pair", "messages": MESSAGES, "max_tokens": 8, "temperature": 0.9}

    def contents(answer) -> dict[int, str]:
        return {choice.index: choice.message.content for choice in answer.choices}

    alone = [contents(official.chat.completions.create(seed=5 + j, **warm))[0] for j in range(3)]
    whole = official.chat.completions.create(seed=5, n=3, **warm)
    assert contents(whole) == dict(enumerate(alone))
    assert whole.usage.completion_tokens == 24
    streamed = dict.fromkeys(range(3), "")
    for chunk in official.chat.completions.create(seed=5, n=3, stream=True, **warm):
        streamed[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert streamed == contents(whole)


def test_the_official_client_completes_several_prompts(official, session):
    prompts = ["import ", "def f("]
    texts = [session.generate(prompt, max_tokens=5).text for prompt in prompts]
    asked = {"model": "pair", "prompt": prompts, "max_tokens": 5, "n": 2}
    answer = official.completions.create(**asked)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert [choice.text for choice in answer.choices] == [texts[0]] * 2 + [texts[1]] * 2
    asked["prompt"] = [session.encode(prompt) for prompt in prompts]
    streamed = dict.fromkeys(range(4), "")
    for chunk in official.completions.create(stream=True, **asked):
        streamed[chunk.choices[0].index] += chunk.choices[0].text
    assert streamed == {choice.index: choice.text for choice in answer.choices}


def test_the_official_client_gets_log_probabilities(official):
    answer = official.chat.completions.create(
        model="pair", messages=MESSAGES, max_tokens=3, logprobs=True, top_logprobs=2
    )
    assert [len(entry.top_logprobs) for entry in answer.choices[0].logprobs.content] == [2] * 3


def test_the_official_client_gets_json_of_a_schema(official):
    schema = {
        "type": "object",
        "properties": {"yes": {"type": "boolean"}},
        "required": ["yes"],
        "additionalProperties": False,
    }
    wanted = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    answer = official.chat.completions.create(
        model="pair", messages=MESSAGES, response_format=wanted, max_tokens=30
    )
    assert isinstance(json.loads(answer.choices[0].message.content)["yes"], bool)


def test_the_official_client_knows_our_errors(official):
    import openai

    with refuses(openai.BadRequestError):
        official.chat.completions.create(model="pair", messages=MESSAGES, temperature=-1)
    with refuses(openai.NotFoundError):
        official.models.retrieve("nothing")


def test_health_needs_nothing_and_metrics_are_prometheus_text(client):
    idle = {"status": "ok", "requests_in_progress": 0, "slots_idle": 1, "slots_processing": 0}
    assert client.get("/health").json() == idle
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = list(text_string_to_metric_families(answer.text))
    assert "edgespec_generated_tokens" in {family.name for family in families}
    for family in families:
        assert family.samples
        assert all(sample.value >= 0 for sample in family.samples)


def test_the_page_needs_no_other_server(client):
    response = client.get("/")
    assert "http" not in response.text.replace("httpd", "")
    assert "default-src 'none'" in response.headers["content-security-policy"]


def test_no_other_page_may_read_an_answer(client):
    assert "access-control-allow-origin" not in client.post(CHAT, json=ASK).headers
    assert "elsewhere" in refused(
        client.post(CHAT, json=ASK, headers={"Origin": "http://elsewhere.example"}), 403
    )


def test_a_name_that_somebody_else_gave_this_machine_is_refused(client):
    refused(client.post(CHAT, json=ASK, headers={"Host": "evil.example"}), 403)
    assert client.get("/health", headers={"Host": "localhost:1"}).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[1]",
        b"null",
        b'"a"',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"messages": [], "temperature": NaN}',
        b'{"messages": []}',
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"messages": [{"role": "king", "content": "a"}]}',
        b'{"messages": [{"role": "user", "content": "a"}], "max_tokens": -3}',
        b'{"messages": [{"role": "user", "content": "a"}], "stopp": 1}',
        b'{"messages": [], "continue_final_message": true}',
        b'{"messages": [{"role": "user", "content": "a"}], "seed": 1e400}',
        b'{"messages": [{"role": "user", "content": "a"}], "logit_bias": {"99999": 1}}',
        b'{"messages": [{"role": "user", "content": "a"}], "response_format": '
        b'{"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": 1}}}}',
    ],
)
def test_rubbish_gets_one_error_and_the_server_goes_on(client, body):
    hold_sentence(refused(client.post(CHAT, content=body), 400))
    assert client.post(CHAT, json=ASK).status_code == 200


def test_a_prompt_longer_than_the_context_is_refused(client):
    messages = [{"role": "user", "content": "word " * 20_000}]
    response = client.post(CHAT, json={"messages": messages})
    assert (response.status_code, response.json()["error"]["n_ctx"] > 0) == (400, True)


def test_a_full_queue_says_when_to_come_again(session):
    begun = threading.Event()
    with serving(session, queue=0) as address, httpx.Client(base_url=address) as http:
        asked = {"prompt": "a", "max_tokens": 400, "stream": True}
        with http.stream("POST", "/v1/completions", json=asked, timeout=60) as running:
            for _ in running.iter_lines():
                begun.set()
                refusal = httpx.post(f"{address}/v1/completions", json={"prompt": "b"})
                break
        assert begun.is_set()
        hold_sentence(refused(refusal, 503))
        assert refusal.headers["retry-after"] == "5"


def test_a_body_that_is_too_large_is_refused_before_it_is_read(session):
    with serving(session, max_body=1000) as address:
        asked = {"messages": [{"role": "user", "content": "a" * 2000}]}
        hold_sentence(refused(httpx.post(address + CHAT, json=asked), 413))

        def parts():
            for _ in range(100):
                yield b" " * 100

        assert "1,000" in refused(httpx.post(address + CHAT, content=parts()), 413)


def test_a_key_is_asked_for_where_there_is_one(session):
    with serving(session, Guard("127.0.0.1", api_key="secret")) as address:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic secret"}):
            answer = httpx.post(address + CHAT, json=ASK, headers=headers)
            hold_sentence(refused(answer, 401))
        right = {"Authorization": "Bearer secret"}
        assert httpx.post(address + CHAT, json=ASK, headers=right, timeout=60).status_code == 200
        assert httpx.get(f"{address}/health").status_code == 200
        assert httpx.get(f"{address}/metrics").status_code == 401


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "example.org"])
def test_other_machines_need_a_key(host):
    with refuses(UsageError):
        Guard(host)
    assert Guard(host, api_key="secret")
