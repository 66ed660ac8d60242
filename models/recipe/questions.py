"""Prompts of our own making for an instruct model, by kind: conversation, code, prose, repeating.
Templates times topics; nothing is taken from anywhere."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

SYSTEM = "<system>"
"""Stands for the system message, whose words `dialogues` knows."""
ANSWER = "<|im_start|>assistant\n"
"""Text before an answer; the model finishes a user's message that ends with anything else."""
SYSTEMS = {
    "llama": "You are a helpful AI assistant named SmolLM, trained by Hugging Face",
    "qwen2": "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.",
}
"""System messages of the models' own templates, by architecture."""

TOPICS = """
volcanoes, the water cycle, photosynthesis, black holes, the Roman Empire, tea, bicycles, glaciers,
vaccines, the printing press, honeybees, democracy, inflation, electric cars, sleep, gravity, opera,
chess, bread, coral reefs, earthquakes, the moon, rice, public libraries, solar panels, dinosaurs,
jazz, wolves, the heart, recycling, the stock market, whales, rainbows, antibiotics, bridges, owls,
the industrial revolution, friendship, deserts, magnets, coffee, marathons, the internet, poetry,
trains, the ocean, painting, cheese, gardens, memory, airplanes, the Silk Road, thunderstorms, cats,
teamwork, robots, mountains, sugar, the human eye, batteries, forests, football, languages, clocks,
salt, elections, rivers, dreams, computers, penguins, gold, museums, the brain, cooking, dance,
stars,
allergies, maps, wool, theatre, comets, bacteria, hospitals, kites, tomatoes, radio, elephants,
snow,
time zones, novels, taxes, yoga, lighthouses, insects, fireworks, universities, glass, dolphins
"""
PLACES = """
France, Japan, Brazil, Kenya, Canada, Norway, Egypt, India, Peru, Australia, Greece, Mexico, Spain,
Germany, Vietnam, Morocco, Iceland, Turkey, Poland, Chile, Italy, South Korea, Portugal, Thailand
"""
PEOPLE = """
Mia, Tom, Aisha, Lena, Omar, Ben, Clara, Hugo, Nina, Pavel, Rosa, Sam, Yuki, Ivan, Ada, Leo, Zoe
"""
SKILLS = """
learn a new language, bake bread, run a marathon, save money, sleep better, write a cover letter,
give a speech, plant a garden, take better photos, study for an exam, plan a trip, fix a bicycle,
make new friends, reduce stress, cook pasta, clean an oven, read faster, train a puppy,
paint a wall,
prepare for an interview, eat healthier, organise a party, start a blog, learn the guitar,
use less water
"""
TASKS = """
reverses a string, checks whether a number is prime, finds the largest item of a list,
counts vowels,
sorts a list of words by length, computes a factorial, merges two sorted lists, removes duplicates,
reads a CSV file, computes the average of a list, converts Celsius to Fahrenheit,
finds the longest word,
checks whether a word is a palindrome, flattens a nested list, counts the words of a text,
sums the digits
of a number, generates Fibonacci numbers, finds the common items of two lists, rotates a list,
validates an
email address, computes the greatest common divisor, transposes a matrix,
groups words by first letter,
writes a dictionary to a JSON file, searches a sorted list, computes compound interest,
shuffles a deck of
cards, encrypts a text with a Caesar cipher, parses a date, prints a multiplication table
"""
HEADS = """
is_even(n), add_item(items, item), to_upper(text), area_of_circle(radius), load_lines(path),
mean(values), clamp(value, low, high), word_lengths(words), power(base, exponent),
find_index(items, item),
last(items), swap(a, b), is_leap_year(year), distance(a, b), chunk(items, size), count_lines(path),
square_all(numbers), max_of_three(a, b, c), join_words(words), median(values), to_binary(n),
is_sorted(items),
remove_spaces(text), invert(mapping), partition(items, pivot), depth(node), insert(node, key),
parse_line(line),
save(path, data), dot_product(a, b), bubble_sort(items), read_config(path), retry(action, times)
"""
LANGUAGES = "Python, Python, Python, Python, JavaScript, Java, C, SQL, Bash, HTML"
BEGINNINGS = """
Once upon a time, in a village by the sea,|The history of {topic} begins|
It was raining when {person} arrived at|
In recent years, {topic} has become|{person} opened the old wooden box and|
Scientists who study {topic} have found that|
There are three reasons why {topic}|The most important thing about {topic} is|
Dear {person},\n\nThank you for your letter about|
{place} is a country that|Chapter 1\n\n{person} had never seen|When {person} was a child,|
People have always been fascinated by {topic}.|
The first time I saw {place},|Introduction\n\nThis essay is about {topic}.|
{person} and {other} walked along the road to|
One of the oldest questions about {topic} is|"I don't know," said {person}.|
The city was quiet that morning.
"""
FIRST = """
What is {topic}?|Explain {topic} in simple terms.|Tell me three facts about {topic}.|
Why is {topic} important?|
What is the capital of {place}?|How do I {skill}?|Give me five tips on how to {skill}.|
Describe {place} to a tourist.|
What are the advantages and disadvantages of {topic}?|Who discovered {topic}?|
Hello! Can you help me to {skill}?|
What should I eat in {place}?|I want to {skill}. Where do I start?|Compare {topic} and {topic2}.|
How does {topic} work?|
What is the difference between {topic} and {topic2}?|
I am {person}. I am interested in {topic}. What should I read?|
List the main parts of {topic}.|Is it hard to {skill}?|What would happen without {topic}?|
Give me a recipe from {place}.|
Make a plan for a week in {place}.|What is {number} plus {number2}?|
Can you recommend a hobby for someone who likes {topic}?|
How can I explain {topic} to a child?|Summarise what is known about {topic} in two sentences.|
Tell me a joke about {topic}.
"""
FOLLOW = """
Can you give an example?|Why is that?|Tell me more.|Thank you! What about {topic}?|
Make it shorter.|And in {place}?|
What else should I know?|How do I {skill}?|Explain that again in simple words.|Are you sure?|
What are the risks?|
"""
STORIES = """
Write a short story about {topic}.|Write a paragraph about {topic}.|Write a poem about {topic}.|
Write a letter from {person} to {other} about {topic}.|
Write a story in which {person} travels to {place}.|
Write an essay on {topic}.|Write a news article about {topic} in {place}.|
Describe a day in the life of {person}, who loves {topic}.|
Write a dialogue between {person} and {other} about {topic}.|
Write a product description for {topic}.
"""
CODING = """
Write a {language} function that {task}.|Write a {language} program that {task} and explain it.|
How do I write code in {language} that {task}?|Show me {language} code that {task}, with comments.|
Write a class in {language} for {topic}.|Write a unit test for a {language} function that {task}.
"""
INVENTED = 0.7
"""Share of the dialogues whose question the model finishes itself."""
RAW = ">"
"""Before what begins a text and no question."""
QUESTIONS = """
What|||||||What is|What are|How|How do I|How does|Why|Why do|Can you|Could you|I|I am|I have|I want|
I'm|Tell me|Explain|Give me|List|Describe|Who|When|Where|Which|Is|Are|Do|Hello|Hi|My|Compare|Help|
Please|Suggest|Name|Define|Summarize|If|The|In|Should|Translate|Let's
"""
CODE = """
Write a Python function|Write a Python function that|Write a Python function to|Write a Python|
Write a function|Write a function in JavaScript|Write a Java|Write a C program|Write a class|
Write a SQL query|Write a bash|Implement|Create a|Write code|How do I|How can I use Python to|
Here is my code:\n\n```python\n|What does this code do?\n\n```|Fix the bug in this function:\n\n|
I have a Python|Using Python,|Given a list|Complete this function:\n\ndef|
>def|>def|>def|>class|>class|>import|>import|>from|>#!/usr/bin/env python|>\"\"\"|>#include <|
>function|>const|>public class|>import os|>def test_|>async def|>@dataclass|>SELECT|><html>
"""
WRITING = """
Write a short story|Write a story|Write a poem|Write an essay|Write a paragraph|Write a letter|
Write a blog post|Write an email|Write a speech|Write a description|Describe|Write a scene|
Write a review|Write an article|Write the|Compose|Tell me a story|Create a|
>The|>A|>In|>When|>It was|>I|>He|>She|>They|>Once|>There|>This|>At|>After|>One|>My|>On|>As|>For|>We|
>You|>Some|>Many|>Most|>\"|>If|>Although|>During|>By|>With|>Mr.|>Her|>The old|>The first
"""
WORK = """
Rewrite this text:|Repeat this text:|Correct the grammar of this text:|Shorten this text:|
Convert this table to JSON:|Sort this list:|Rename the variable in this code:|
Add comments to this code:|Write this text in the past tense:|Summarize the following text:|
Fix the spelling:|Translate this to French:|Add type hints to this function:|
Make this email more polite:|Turn this text into a list:|Extract the names from this text:|
Refactor this function:|Convert this list to a table:|Rewrite the sentence in the passive voice:|
Replace every name in this text:|Add a docstring:|Edit the following paragraph:
"""
SNIPPET = """\
def {name}(values):
    total = 0
    for value in values:
        if value > {number}:
            total += value
    return total
"""
SENTENCES = (
    "{person} likes {topic} and {topic2}. {other} has never been to {place}. They met {number} "
    "years ago in {place2}, where {person} wanted to {skill}. Since then they have talked about "
    "{topic2}."
)
TABLE = """\
name,age,city
{person},{number},{place}
{other},{number2},{place2}
"""


def _listed(text: str, separator: str = ",") -> list[str]:
    return [" ".join(part.split(" ")).strip() for part in text.replace(",\n", ",").split(separator)]


def _lines(text: str) -> list[str]:
    return [part.strip("\n") for part in text.strip("\n|").split("|")]


_WORDS = {
    "topic": _listed(TOPICS.replace("\n", " ")),
    "place": _listed(PLACES.replace("\n", " ")),
    "person": _listed(PEOPLE.replace("\n", " ")),
    "skill": _listed(SKILLS.replace("\n", " ")),
    "task": _listed(TASKS.replace("\n", " ")),
    "language": _listed(LANGUAGES),
}
_HEADS = [head.strip() + ")" for head in HEADS.replace("\n", " ").split("),") if head.strip(" )")]


def filled(template: str, rng: random.Random) -> str:
    """The template with words for its fields."""
    values: dict[str, object] = {name: rng.choice(words) for name, words in _WORDS.items()}
    values |= {f"{name}2": rng.choice(words) for name, words in _WORDS.items()}
    values |= {
        "other": rng.choice(_WORDS["person"]),
        "name": rng.choice(["total", "sum_of", "add"]),
    }
    values |= {"number": rng.randint(2, 60), "number2": rng.randint(2, 99)}
    return template.format(**values)


def asked(text: str, rng: random.Random) -> str:
    """A user's message in the model's chat template, mostly under its own system prompt."""
    return f"{SYSTEM if rng.random() < 0.7 else ''}{message(text)}"


def message(text: str) -> str:
    return f"<|im_start|>user\n{text}<|im_end|>\n{ANSWER}"


def invented(begins: str, follow_ups: list[str], rng: random.Random) -> list[str]:
    """A dialogue whose first question the model finishes itself."""
    system = SYSTEM if rng.random() < 0.8 else ""
    return [f"{system}<|im_start|>user\n{begins}", ANSWER, *follow_ups]


def conversation(rng: random.Random) -> list[str]:
    follow_ups = [message(filled(rng.choice(_lines(FOLLOW)), rng)) for _ in range(2)]
    if rng.random() < INVENTED:
        return invented(rng.choice(_lines(QUESTIONS)), follow_ups, rng)
    return [asked(filled(rng.choice(_lines(FIRST)), rng), rng), *follow_ups]


def code(rng: random.Random) -> list[str]:
    follow_up = message(rng.choice(["Explain the code.", "Add error handling.", "Make it faster."]))
    if rng.random() < INVENTED:
        begins = rng.choice(_lines(CODE))
        if begins.startswith(RAW):
            return [begins.removeprefix(RAW)]
        return invented(begins, [follow_up], rng)
    if rng.random() < 0.4:
        head = rng.choice(_HEADS).rstrip(")") + ")"
        return [rng.choice(["", "import os\n\n\n", "# Helpers.\n\n"]) + f"def {head}:\n"]
    return [asked(filled(rng.choice(_lines(CODING)), rng), rng), follow_up]


def prose(rng: random.Random) -> list[str]:
    if rng.random() < INVENTED:
        begins = rng.choice(_lines(WRITING))
        raw = begins.startswith(RAW)
        return [begins.removeprefix(RAW)] if raw else invented(begins, [], rng)
    if rng.random() < 0.5:
        return [filled(rng.choice(_lines(BEGINNINGS)), rng)]
    return [asked(filled(rng.choice(_lines(STORIES)), rng), rng)]


def repeating(rng: random.Random) -> list[str]:
    """Work on a text that the answer mostly repeats."""
    if rng.random() < INVENTED:
        return invented(f"{rng.choice(_lines(WORK))}\n\n", [], rng)
    source, requests = rng.choice(
        [
            (
                SNIPPET,
                ["Rename total to result in this code:", "Add a docstring to this function:"],
            ),
            (SENTENCES, ["Correct the spelling of this text:", "Repeat this text word for word:"]),
            (SENTENCES, ["Write this text in the past tense:", "Make a list of the sentences:"]),
            (
                TABLE,
                ["Convert this table to JSON:", "Add a row to this table:", "Sort this table:"],
            ),
        ]
    )
    return [asked(f"{rng.choice(requests)}\n\n{filled(source, rng)}", rng)]


KINDS: dict[str, Callable[[random.Random], list[str]]] = {
    "conversation": conversation,
    "code": code,
    "prose": prose,
    "repeating": repeating,
}


def dialogues(seed: int, architecture: str = "llama") -> Iterator[list[str]]:
    """Endless dialogues, each the user's messages in turn, kinds in turn."""
    rng = random.Random(seed)
    system = f"<|im_start|>system\n{SYSTEMS[architecture]}<|im_end|>\n"
    while True:
        for kind in KINDS.values():
            yield [text.replace(SYSTEM, system) for text in kind(rng)]
