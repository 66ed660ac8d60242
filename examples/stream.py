"""Streams a text to the terminal and says what it cost.

python stream.py big.gguf small.gguf "def gcd(a, b):"
"""

import sys

import edgespec

if __name__ == "__main__":
    model, draft, prompt = sys.argv[1:]
    settings = edgespec.LoadSettings(model=model, draft=draft, memory_budget="1GiB")
    with edgespec.load(settings) as session, session.stream(prompt, max_tokens=64) as generation:
        print(prompt, end="")
        for event in generation:
            print(event.text, end="", flush=True)
        result = generation.result
    print(f"\n{len(result.tokens)} tokens, ended by {result.finish_reason}", file=sys.stderr)
