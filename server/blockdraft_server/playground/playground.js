// The playground: a race of plain and drafted decoding, and a chat. It calls the API beside it.

const $ = (id) => document.getElementById(id);
const SOURCES = ["target", "drafter", "prompt_lookup", "grammar"];
const REASONS = { 401: "This service needs a valid API key.", 404: "This is no model of the service." };
let key = sessionStorage.getItem("key") ?? "";
let model = "";

// Calls of the API

class ApiError extends Error {
  constructor(status, content) {
    super(content?.error?.message ?? REASONS[status] ?? `the service answered ${status}`);
    this.status = status;
    this.reason = content?.error?.code;
  }
}

async function call(path, body, signal) {
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  const options = { headers, signal };
  if (body) {
    headers["Content-Type"] = "application/json";
    Object.assign(options, { method: "POST", body: JSON.stringify(body) });
  }
  const response = await fetch(path, options);
  if (response.ok) return response;
  const content = await response.json().catch(() => null);
  $("key-form").hidden = response.status !== 401;
  throw new ApiError(response.status, content);
}

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data: ") || line === "data: [DONE]") continue;
      const piece = JSON.parse(line.slice(6));
      if (piece.error) throw new ApiError(500, piece);
      yield piece;
    }
  }
}

// Yields the pieces of one answer: its tokens, its text, and at the end its usage.
async function* answer(messages, options, signal) {
  const body = { model, stream: true, ...options };
  body.stream_options = { include_usage: true, include_token_sources: true };
  let response;
  try {
    response = await call("v1/chat/completions", { ...body, messages }, signal);
  } catch (error) {
    // A model without a chat template continues the text of the last message.
    if (!error.message.includes("no chat template")) throw error;
    response = await call("v1/completions", { ...body, prompt: messages.at(-1).content }, signal);
  }
  for await (const piece of events(response)) {
    const choice = piece.choices[0];
    const text = choice?.delta?.content ?? choice?.text ?? "";
    const reasoning = choice?.delta?.reasoning_content ?? "";
    yield { text, reasoning, tokens: choice?.token_sources ?? [], usage: piece.usage };
  }
}

// Text in the colours of its sources

class Painter {
  constructor(output) {
    this.output = output;
    this.decoder = new TextDecoder();
    output.replaceChildren();
  }

  token({ bytes, source }) {
    // A character may have the bytes of several tokens: it gets the colour of the last one.
    this.text(this.decoder.decode(new Uint8Array(bytes), { stream: true }), source);
  }

  text(text, source = "target") {
    if (!text) return;
    const span = document.createElement("span");
    span.textContent = text;
    if (SOURCES.includes(source)) span.className = source;
    this.output.append(span);
  }
}

// The race

class Lane {
  constructor(name) {
    this.name = name;
    this.output = $(`${name}-text`);
    this.figures = $(`${name}-figures`);
    this.reset();
  }

  reset() {
    this.painter = new Painter(this.output);
    this.pieces = []; // with the milliseconds since the request
    this.tokens = [];
    this.steps = []; // accepted tokens of each
    this.accepted = 0;
    this.first = null;
    this.last = 0;
  }

  add(piece) {
    if (!piece.tokens.length) return;
    this.pieces.push(piece);
    this.first ??= piece.at;
    this.last = piece.at;
    for (const token of piece.tokens) {
      this.painter.token(token);
      this.tokens.push(token);
      // A step ends with the target's own token. The first one is that of the prompt.
      if (token.source !== "target") this.accepted += 1;
      else {
        if (this.tokens.length > 1) this.steps.push(this.accepted);
        this.accepted = 0;
      }
    }
    this.show();
  }

  // Tokens a second after the first ones, whose time is that of the prompt.
  get speed() {
    const began = this.pieces[0]?.tokens.length ?? 0;
    return this.last > this.first ? (1000 * (this.tokens.length - began)) / (this.last - this.first) : 0;
  }

  show() {
    const tau = this.steps.length ? 1 + this.steps.reduce((a, b) => a + b, 0) / this.steps.length : 1;
    const parts = [
      `${this.tokens.length} tokens`,
      `${this.speed.toFixed(1)} tokens/s`,
      `first after ${(this.first / 1000).toFixed(2)} s`,
    ];
    if (this.name === "drafted") parts.push(`τ ${tau.toFixed(2)}`);
    this.figures.textContent = parts.join(" · ");
    if (this.name === "drafted") this.showPositions();
  }

  showPositions() {
    const most = Math.max(0, ...this.steps);
    $("positions").hidden = most === 0;
    const rows = Array.from({ length: most }, (_, place) => {
      const share = this.steps.filter((count) => count > place).length / this.steps.length;
      const row = document.createElement("tr");
      const [head, bar, figure] = ["th", "td", "td"].map((kind) => document.createElement(kind));
      head.textContent = place + 1;
      const meter = document.createElement("meter");
      meter.value = share;
      meter.setAttribute("aria-label", `accepted ${place + 1} or more`);
      bar.append(meter);
      figure.textContent = `${Math.round(100 * share)} %`;
      row.append(head, bar, figure);
      return row;
    });
    $("positions").tBodies[0].replaceChildren(...rows);
  }
}

const lanes = { plain: new Lane("plain"), drafted: new Lane("drafted") };

async function drive(lane, speculation) {
  const options = {
    temperature: Number($("race-temperature").value),
    max_tokens: Number($("race-tokens").value),
    seed: 1,
    speculation,
  };
  lane.reset();
  const began = performance.now();
  let usage = null;
  for await (const piece of answer([{ role: "user", content: $("prompt").value }], options)) {
    lane.add({ ...piece, at: performance.now() - began });
    usage = piece.usage ?? usage;
  }
  return usage;
}

function verdict(usage) {
  const { plain, drafted } = lanes;
  const same = JSON.stringify(plain.tokens.map((t) => t.bytes)) === JSON.stringify(drafted.tokens.map((t) => t.bytes));
  const tokens = same ? `all ${plain.tokens.length} tokens the same` : "the tokens differ";
  if (plain.tokens.length < 2 || !plain.speed) return `${tokens}; too short to be timed`;
  const details = usage?.completion_tokens_details ?? {};
  const count = (details.accepted_prediction_tokens ?? 0) + (details.rejected_prediction_tokens ?? 0);
  const pause = drafting.reason || (drafter ? "it does not pay for this text" : "no drafter is attached, and nothing repeats");
  const why = count ? "" : ` Nothing was drafted: ${pause}.`;
  const drafts = drafted.tokens.filter(({ source }) => source !== "target");
  const lookups = drafts.filter(({ source }) => source === "prompt_lookup");
  // Else the second run of a prompt would look like the gain of the first.
  const memory = 2 * lookups.length > drafts.length
    ? " Most of what was right came from prompt lookup, which remembers recent completions." : "";
  return `${(drafted.speed / plain.speed).toFixed(2)} times as fast, ${tokens}.${why}${memory}`;
}

async function race(event) {
  event.preventDefault();
  $("run").disabled = $("replay").disabled = true;
  lanes.plain.reset();
  lanes.drafted.reset();
  $("positions").hidden = true;
  // One after the other: they would slow each other down.
  await report($("verdict"), async () => {
    $("verdict").textContent = "decoding plainly …";
    await drive(lanes.plain, { disabled: true });
    $("verdict").textContent = "the same, drafted …";
    const usage = await drive(lanes.drafted, {});
    await describe();  // Whether drafting is paused may have changed.
    $("verdict").textContent = verdict(usage);
    $("replay").disabled = false;
  });
  $("run").disabled = false;
}

// Shows both again as they came, from the same moment on.
async function replay() {
  $("run").disabled = $("replay").disabled = true;
  await Promise.all(Object.values(lanes).map(async (lane) => {
    const pieces = lane.pieces;
    lane.reset();
    const began = performance.now();
    for (const piece of pieces) {
      await new Promise((done) => setTimeout(done, piece.at - (performance.now() - began)));
      lane.add(piece);
    }
  }));
  $("run").disabled = $("replay").disabled = false;
}

// The chat

const conversation = [];
let halt = null;

function bubble(role, text = "") {
  const item = document.createElement("li");
  item.className = role;
  const output = document.createElement("output");
  output.className = "text";
  output.textContent = text;
  item.append(output);
  $("messages").append(item);
  item.scrollIntoView({ block: "end" });
  return output;
}

function chatOptions() {
  const number = (id) => ($(id).value === "" ? undefined : Number($(id).value));
  const options = { temperature: number("temperature"), top_p: number("top-p"), max_tokens: number("tokens") };
  if ($("stop").value) options.stop = [$("stop").value];
  if ($("schema").value.trim()) {
    const schema = JSON.parse($("schema").value);
    options.response_format = { type: "json_schema", json_schema: { name: "answer", schema } };
  }
  return options;
}

async function send(event) {
  event.preventDefault();
  const figures = $("chat-figures");
  let options;
  try {
    options = chatOptions();
  } catch (error) {
    return fail(figures, new Error(`the JSON Schema is no JSON: ${error.message}`));
  }
  const question = { role: "user", content: $("message").value };
  $("message").value = "";
  const system = $("system").value.trim() ? [{ role: "system", content: $("system").value }] : [];
  const asked = bubble("user", question.content);
  const output = bubble("assistant");
  const painter = new Painter(output);
  let [text, count, began, first] = ["", 0, performance.now(), null];
  halt = new AbortController();
  $("send").disabled = true;
  $("halt").disabled = false;
  await report(figures, async () => {
    for await (const piece of answer([...system, ...conversation, question], options, halt.signal)) {
      if (piece.tokens.length) first ??= performance.now();
      text += piece.text;
      count += piece.tokens.length;
      const said = new TextDecoder().decode(new Uint8Array(piece.tokens.flatMap((token) => token.bytes)));
      // Tags and control tokens are no part of the text: such a piece has no colours.
      if (said === piece.text + piece.reasoning) piece.tokens.forEach((token) => painter.token(token));
      else painter.text(piece.reasoning + piece.text);
      const seconds = (performance.now() - (first ?? began)) / 1000;
      figures.textContent = `${count} tokens · ${(seconds ? count / seconds : 0).toFixed(1)} tokens/s`;
    }
  });
  if (text) conversation.push(question, { role: "assistant", content: text });
  else {
    $("message").value = question.content;
    [output, asked].forEach((each) => each.parentElement.remove());
  }
  $("send").disabled = false;
  $("halt").disabled = true;
  $("message").focus();
}

// What is served, errors, and views

let drafter = null;
let drafting = {};

async function describe() {
  const line = $("model");
  await report(line, async () => {
    const [served] = (await (await call("v1/models")).json()).data;
    const details = served.blockdraft ?? {};
    model = served.id;
    drafter = details.drafter ?? null;
    drafting = details.drafting ?? {};
    const exactness = details.exactness;
    line.textContent = [
      model,
      exactness?.dtype,
      exactness && (exactness.exact ? "exact: drafting never changes a token" : "inexact"),
      drafter ? `drafter ${drafter.method}, up to ${drafter.block_size - 1} tokens a step` : "no drafter attached: prompt lookup alone",
      drafting.reason ? `drafting is ${drafter ? "paused" : "off"}: ${drafting.reason}` : "drafting is on",
      ...(drafting.sources ?? []).map(({ source, accepted_tokens, drafted_tokens }) => {
        const name = source.replace("TOKEN_SOURCE_", "").replace("_", " ").toLowerCase();
        return `${name}: ${accepted_tokens ?? 0} of ${drafted_tokens} drafted tokens accepted`;
      }),
      `${served.max_model_len} tokens of context`,
    ].filter(Boolean).join(" · ");
    $("key-form").hidden = true;
  });
}

async function report(place, work) {
  place.classList.remove("error");
  try {
    await work();
  } catch (error) {
    if (error.name !== "AbortError") fail(place, error);
  }
}

function fail(place, error) {
  place.classList.add("error");
  place.textContent = error.message;
}

function showView() {
  const view = location.hash === "#chat" ? "chat" : "race";
  for (const name of ["race", "chat"]) {
    $(name).hidden = name !== view;
    $(`to-${name}`).toggleAttribute("aria-current", name === view);
  }
}

$("race-form").addEventListener("submit", race);
$("replay").addEventListener("click", replay);
$("chat-form").addEventListener("submit", send);
$("halt").addEventListener("click", () => halt?.abort());
$("clear").addEventListener("click", () => {
  conversation.length = 0;
  $("messages").replaceChildren();
  $("chat-figures").textContent = "";
});
$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  key = $("key").value.trim();
  sessionStorage.setItem("key", key);
  $("key").value = "";
  describe();
});
$("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("race-form").requestSubmit($("run"));
});
$("message").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  if (!$("send").disabled) $("chat-form").requestSubmit();
});
addEventListener("hashchange", showView);
showView();
describe();
