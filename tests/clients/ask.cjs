// Asks with OpenAI's own client for JavaScript, in every way, and prints what came as JSON.
const { OpenAI } = require("openai");

const [baseURL, text, stop] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 });
const fields = { model: "tiny", max_tokens: 24, temperature: 0 };
const messages = [{ role: "user", content: text }];

const chat = (options = {}) => client.chat.completions.create({ ...fields, messages, ...options });
const content = async (options) => (await chat(options)).choices[0].message.content;

async function main() {
  let streamed = "";
  for await (const part of await chat({ stream: true })) {
    streamed += part.choices[0]?.delta?.content ?? "";
  }
  const ranked = await chat({ max_tokens: 8, logprobs: true, top_logprobs: 2 });
  const several = await chat({ n: 2, temperature: 1, seed: 3 });
  const refused = await chat({ modalities: ["audio"] }).catch((error) => error);
  return {
    whole: await content(),
    streamed,
    sampled: await content({ temperature: 1, seed: 7 }),
    stopped: await content({ stop: [stop] }),
    together: await Promise.all([1, 2, 3, 4, 5, 6, 7, 8].map(() => content())),
    several: several.choices.map((choice) => choice.message.content),
    log_probs: ranked.choices[0].logprobs.content.map((each) => each.logprob),
    refused: refused.status,
  };
}

main().then((found) => console.log(JSON.stringify(found)));
