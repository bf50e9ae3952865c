// Print the first hits of queries as the search box of the site has them: node search.js SITE QUERY…
// Runs the theme's own worker, in a context that has what it uses of a browser.
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const [site, ...queries] = process.argv.slice(2);
const folder = path.join(site, "assets", "javascripts", "workers");
const [worker] = fs.readdirSync(folder).filter((name) => /^search\..*\.js$/.test(name));

let onMessage;
let onAnswer;
const context = vm.createContext({
  console,
  addEventListener: (_, listener) => (onMessage = listener),
  postMessage: (message) => onAnswer(message),
});
context.self = context;
vm.runInContext(fs.readFileSync(path.join(folder, worker), "utf8"), context);

const send = (type, data) =>
  new Promise((resolve) => {
    onAnswer = resolve;
    onMessage({ data: { type, data } });
  });

(async () => {
  const index = JSON.parse(fs.readFileSync(path.join(site, "search", "search_index.json")));
  await send(0, { ...index, options: { suggest: true } });
  for (const query of queries) {
    const { data } = await send(2, query);
    console.log(data.items[0][0].location);
  }
})();
