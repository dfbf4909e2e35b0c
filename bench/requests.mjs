// Asks for paths at a steady rate, as many people's browsers do, and answers such requests: `serve PORT COUNT`, at that many
// addresses of loopback from 127.0.1.1 on, as the gateway leads two sessions to no single one; or `ask` with a JSON document
// {urls, cookies, rate, seconds} on its standard input, which prints {asked, failed, reasons, milliseconds}.
import http from "node:http";

const [what, port, count] = process.argv.slice(2);

if (what === "serve") {
  for (let number = 1; number <= Number(count); number += 1)
    http.createServer((_, answer) => answer.end("this is a session\n")).listen(Number(port), `127.0.1.${number}`);
} else {
  let text = "";
  for await (const part of process.stdin) text += part;
  const { urls, cookies, rate, seconds } = JSON.parse(text);
  const agent = new http.Agent({ keepAlive: true, maxSockets: 256 });
  const milliseconds = [];
  const pending = new Set();
  let failed = 0;
  const reasons = {};
  const fail = (why) => ((failed += 1), (reasons[why] = (reasons[why] ?? 0) + 1));
  const ask = (number) =>
    new Promise((done) => {
      const begun = performance.now();
      const headers = { cookie: cookies[number % cookies.length], accept: "*/*" };
      const request = http.get(urls[number % urls.length], { agent, headers }, (answer) => {
        let text = "";
        answer.on("data", (part) => (text = `${text}${part}`.slice(0, 24)));
        answer.on("end", () => answer.statusCode === 200 || fail(`${answer.statusCode} ${text.trim()}`));
        answer.on("end", () => done(milliseconds.push(performance.now() - begun)));
      });
      // As browsers do: a connection that was kept may be closed in the moment in which it is used again.
      request.on("error", ({ code }) => done(request.reusedSocket && code === "ECONNRESET" ? ask(number) : fail(code)));
    });
  const begun = performance.now();
  for (let number = 0; number < rate * seconds; ) {
    const due = Math.min(rate * seconds, ((performance.now() - begun) / 1000) * rate);
    for (; number < due; number += 1) {
      const asked = ask(number).finally(() => pending.delete(asked));
      pending.add(asked);
    }
    await new Promise((done) => setTimeout(done, 2));
  }
  await Promise.all(pending);
  console.log(JSON.stringify({ asked: rate * seconds, failed, reasons, milliseconds }));
}
