"""Asks a server that `edgespec serve` started, with OpenAI's own client.

python client.py http://127.0.0.1:8080/v1 "Write gcd"
"""

import os
import sys

import openai

if __name__ == "__main__":
    base_url, question = sys.argv[1:]
    key = os.environ.get("EDGESPEC_API_KEY", "none")  # a server without keys ignores it
    with openai.OpenAI(base_url=base_url, api_key=key) as client:
        model = client.models.list().data[0].id
        chunks = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": question}],
            max_tokens=32,
            stream=True,
        )
        for chunk in chunks:
            if chunk.choices:
                print(chunk.choices[0].delta.content or "", end="", flush=True)
    print()
