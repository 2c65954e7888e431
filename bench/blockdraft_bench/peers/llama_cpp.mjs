// llama.cpp, through node-llama-cpp, as a process that `decoders.py` asks.
// Arguments: the folder of node_modules, a GGUF file, threads, most tokens of prompt and completion.
import {createInterface} from "node:readline";
import {pathToFileURL} from "node:url";

process.on("uncaughtException", (error) => {
    console.error(String(error));
    process.exit(1);
});
const [folder, modelPath, threads, contextSize] = process.argv.slice(2);
const module = pathToFileURL(`${folder}/node_modules/node-llama-cpp/dist/index.js`);
const {getLlama} = await import(module.href);
const llama = await getLlama({
    gpu: false, build: "never", maxThreads: Number(threads), logLevel: "error", progressLogs: false
});
const model = await llama.loadModel({modelPath});
// "auto" is llama.cpp's own default.
const context = await model.createContext({
    contextSize: Number(contextSize), threads: Number(threads), flashAttention: "auto"
});
const sequence = context.getSequence();
const say = (content) => process.stdout.write(JSON.stringify(content) + "\n");

say({"llama.cpp": llama.llamaCppRelease.release});
for await (const line of createInterface({input: process.stdin})) {
    const {prompt, max_tokens: maxTokens, stop} = JSON.parse(line);
    const tokens = [], seconds = [];
    const start = performance.now();
    await sequence.clearHistory();
    for await (const token of sequence.evaluate(prompt, {temperature: 0, yieldEogToken: true})) {
        seconds.push((performance.now() - start) / 1000);
        tokens.push(token);
        if (tokens.length === maxTokens || stop.includes(token)) break;
    }
    say({tokens, seconds});
}
process.exit();
