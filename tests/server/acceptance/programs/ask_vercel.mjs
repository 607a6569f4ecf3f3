// Vercel's SDK by one of its providers, which is named beside what is given.
import { createAnthropic } from '@ai-sdk/anthropic';
import { createOpenAI } from '@ai-sdk/openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { generateText, Output, stepCountIs, streamText, tool } from 'ai';
import { createOllama } from 'ai-sdk-ollama';
import { z } from 'zod';

// See asking.py for what is given, what is printed and why this waits at its end.
const given = JSON.parse(process.argv.at(-1));
const say = (scene, came) => console.log(JSON.stringify([scene, came ?? null]));
const prompt = given.question;
const providers = {
  chat: (url) => createOpenAI({ baseURL: `${url}/v1`, apiKey: 'any' }).chat('model-1'),
  responses: (url) => createOpenAI({ baseURL: `${url}/v1`, apiKey: 'any' }).responses('model-1'),
  compatible: (url) =>
    createOpenAICompatible({ name: 'local', baseURL: `${url}/v1`, apiKey: 'any', supportsStructuredOutputs: true })('model-1'),
  messages: (url) => createAnthropic({ baseURL: `${url}/v1`, apiKey: 'any' })('model-1'),
  ollama: (url) => createOllama({ baseURL: url })('model-1'),
};
const providerOptions = { openai: { store: false, forceReasoning: true, reasoningSummary: 'auto' } }; // Else it refers to items that the server does not keep, and takes no model that it does not know for one that thinks.
const common = (url) => ({ model: providers[given.provider](url), maxRetries: 0, providerOptions });
const tools = {
  get_weather: tool({
    description: 'The weather in a place.',
    inputSchema: z.object({ place: z.string() }),
    execute: async ({ place }) => (place === 'Oslo' ? given.rain : 'unknown'),
  }),
};
const paint = z.object({ colour: z.enum(['red', 'blue']), litres: z.union([z.literal(1), z.literal(2)]) });
const gather = async (stream) => {
  const pieces = [];
  for await (const piece of stream) pieces.push(piece);
  return pieces;
};

say('chat', (await generateText({ ...common(given.chat), prompt })).text);
say('stream', await gather(streamText({ ...common(given.chat), prompt }).textStream));
const loop = { prompt, tools, stopWhen: stepCountIs(3) };
say('tools', (await generateText({ ...common(given.tools), ...loop })).text);
say('tools stream', await streamText({ ...common(given.streamed), ...loop }).text);
const { reasoningText } = await generateText({ ...common(given.thought), prompt });
if (reasoningText) say('thinking', reasoningText);
say('structured', (await generateText({ ...common(given.paint), prompt, output: Output.object({ schema: paint }) })).output);
if (given.provider !== 'ollama') {  // which goes on reading
  const leaving = new AbortController();
  for await (const _ of streamText({ ...common(given.long), prompt, abortSignal: leaving.signal }).textStream) leaving.abort();
  say('cancel', true);
}
process.stdin.resume();
