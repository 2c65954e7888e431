// Visits pages of the site in a browser, wide and narrow, and prints what it saw as JSON.
import chromium from "@sparticuz/chromium";
import { chromium as playwright } from "playwright-core";

const [address, ...paths] = process.argv.slice(2);
const browser = await playwright.launch({
  executablePath: await chromium.executablePath(),
  args: chromium.args,
  headless: true,
});
// One page for all: the browser is a single process and ends with its page.
const page = await browser.newPage();
let problems = [];
page.on("pageerror", (error) => problems.push(String(error)));
page.on("request", (request) => {
  if (!request.url().startsWith(address) && !request.url().startsWith("data:")) problems.push(request.url());
});
const seen = [];
for (const path of paths) {
  for (const width of [1280, 400]) {
    problems = [];
    await page.setViewportSize({ width, height: 900 });
    await page.goto(`${address}/${path}`, { waitUntil: "networkidle" });
    seen.push({
      path, width, problems,
      title: await page.title(),
      header: await page.textContent(".md-header__topic"),
      overflow: await page.evaluate(() => document.documentElement.scrollWidth - innerWidth),
      diagrams: await page.$$eval(".diagram > .mermaid", (found) => found.map((one) => one.offsetHeight)),
    });
  }
}
await browser.close();
console.log(JSON.stringify(seen));
