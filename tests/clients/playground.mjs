// Uses the playground in a browser as a person would, and prints what it showed as JSON.
import { mkdirSync } from "node:fs";
import chromium from "@sparticuz/chromium";
import { chromium as playwright } from "playwright-core";

const [address, key, pictures] = process.argv.slice(2);
const picture = async (page, name) => {
  if (!pictures) return;
  mkdirSync(pictures, { recursive: true });
  await page.screenshot({ path: `${pictures}/${name}.png`, fullPage: true });
};
const browser = await playwright.launch({
  executablePath: await chromium.executablePath(),
  args: chromium.args,
  headless: true,
});
const page = await browser.newPage({ viewport: { width: 1280, height: 800 } });
const problems = [];
page.on("pageerror", (error) => problems.push(String(error)));
page.on("request", (request) => {
  if (!request.url().startsWith(address) && !request.url().startsWith("data:")) problems.push(request.url());
});
const text = (selector) => page.textContent(selector);
const shown = (selector, words) => page.waitForFunction(
  ([selector, words]) => document.querySelector(selector).textContent.includes(words), [selector, words],
  { timeout: 240_000 },
);
const found = {};

await page.goto(address);
// The key is asked for, by keyboard, and forgotten with the tab.
await shown("#model", "API key");
await picture(page, "key");
await page.focus("#key");
await page.keyboard.type(key);
await page.keyboard.press("Enter");
await shown("#model", "context");
found.model = await text("#model");
await picture(page, "before");

await page.fill("#prompt", "Count: 1 2 3 1 2 3 1 2 3 1 2");
await page.fill("#race-tokens", "24");
await page.press("#prompt", "Control+Enter");
await page.waitForSelector("#drafted-text span", { timeout: 240_000 });
await picture(page, "streaming");
await shown("#verdict", "tokens the same");
found.verdict = await text("#verdict");
found.plain = await text("#plain-text");
found.drafted = await text("#drafted-text");
found.figures = await text("#drafted-figures");
found.sources = await page.$$eval("#drafted-text span", (spans) => [...new Set(spans.map((span) => span.className))]);
await picture(page, "raced");
await page.click("#replay");
await page.waitForSelector("#replay:not([disabled])");
found.replayed = await text("#drafted-text");

await page.setViewportSize({ width: 400, height: 800 });
found.overflow = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
await picture(page, "narrow");

await page.click("#to-chat");
await page.click("summary");
await page.fill("#schema", "{");
await page.fill("#message", "Hello");
await page.press("#message", "Enter");
await shown("#chat-figures", "no JSON");
await page.fill("#schema", '{"enum": ["yes", "no"]}');
await page.press("#message", "Enter");
await page.waitForSelector("#halt[disabled]");
await shown("#messages li:last-child", '"');
found.constrained = await text("#messages li:last-child");
await page.fill("#schema", "");
await page.fill("#message", "Go on");
await page.press("#message", "Enter");
await page.waitForSelector("#messages li:nth-child(4) span");
// Not as a click of the mouse, which would wait for the button if all has come already.
await page.evaluate(() => document.querySelector("#halt").click());
await page.waitForSelector("#halt[disabled]");
found.halted = await page.$$eval("#messages li", (items) => items.length);
await picture(page, "chat");
await page.setViewportSize({ width: 1280, height: 800 });
await picture(page, "chat-wide");

// The server asks its verifier now and then.
do {
  await page.reload();
  await shown("#model", "context");
  found.counts = await text("#model");
} while (!found.counts.includes("accepted"));

await browser.close();
console.log(JSON.stringify({ ...found, problems }));
