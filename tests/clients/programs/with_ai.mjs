// Vercel's AI SDK.

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, streamText, tool } from "ai";
import { z } from "zod";

const provider = createOpenAICompatible({
  name: "edgespec",
  baseURL: process.env.SERVER + "/v1",
  supportsStructuredOutputs: true,
});
const ask = {
  model: provider("smollm2"),
  prompt: "What is the capital of France?",
  temperature: 0,
  maxOutputTokens: 80,
  maxRetries: 0,
};
const weather = tool({
  description: "The weather of a city",
  inputSchema: z.object({ city: z.enum(["Paris", "Rome"]) }),
});

function expect(condition, message) {
  if (!condition) throw new Error(message);
}

const checks = {
  async check_answer() {
    const { text } = await generateText(ask);
    expect(text.includes("Paris"), text);
  },
  async check_stream() {
    let text = "";
    for await (const part of streamText(ask).textStream) text += part;
    expect(text.includes("Paris"), text);
  },
  async check_object() {
    const schema = z.object({ city: z.string(), inhabitants: z.number().int() });
    const { object } = await generateObject({ ...ask, schema });
    expect(typeof object.inhabitants === "number", JSON.stringify(object));
  },
  async check_call() {
    const { toolCalls } = await generateText({ ...ask, tools: { weather }, toolChoice: "required" });
    expect(["Paris", "Rome"].includes(toolCalls[0].input.city), JSON.stringify(toolCalls));
  },
  async check_call_in_a_stream() {
    const stream = streamText({ ...ask, tools: { weather }, toolChoice: "required" });
    const calls = await stream.toolCalls;
    expect(calls[0].toolName === "weather", JSON.stringify(calls));
  },
  async check_overflow() {
    try {
      await generateText({ ...ask, prompt: "word ".repeat(6000) });
    } catch (error) {
      expect(error.statusCode === 400 && error.responseBody.includes("context_length_exceeded"), error);
      return;
    }
    throw new Error("accepted");
  },
};

for (const [check, run] of Object.entries(checks)) {
  const error = await run().then(() => null, (reason) => String(reason.stack ?? reason));
  console.log(JSON.stringify({ check, error }));
}
