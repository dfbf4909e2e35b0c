// configurable-http-proxy, with a word for everybody whose request or websocket breaks off because its session ends:
// by itself it answers without Retry-After, leaves half an answer hanging, and hangs up on websockets.
import http from "node:http";
import { pipeline } from "node:stream";
import { parseArgs } from "node:util";
import { ConfigurableProxy } from "configurable-http-proxy/lib/configproxy.js";
import { defaultLogger } from "configurable-http-proxy/lib/log.js";

const text = { type: "string" };
const { values: given } = parseArgs({ options: { ip: text, port: text, "api-port": text, "waiting-page": text } });

// "Service Restart" (RFC 6455, registry of close codes), so that whoever hears it may come again.
const RESTART = 1012;
const CLOSE = 8;
const AWAY = "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";

/** Follows the frames that a server sends, whose payloads are never masked. */
class Frames {
  #head = Buffer.alloc(0);
  #left = 0;
  closed = false;

  /** Nothing is half sent, so that another frame may follow. */
  get whole() {
    return !this.#head.length && !this.#left;
  }

  follow(sent) {
    while (sent.length) {
      if (this.#left) {
        const part = Math.min(this.#left, sent.length);
        this.#left -= part;
        sent = sent.subarray(part);
        continue;
      }
      this.#head = Buffer.concat([this.#head, sent.subarray(0, 1)]);
      sent = sent.subarray(1);
      this.#begin();
    }
  }

  #begin() {
    const head = this.#head;
    const short = head[1] & 127;
    const length = short === 127 ? 10 : short === 126 ? 4 : 2;
    if (head.length < length) return;
    this.#left = length === 10 ? Number(head.readBigUInt64BE(2)) : length === 4 ? head.readUInt16BE(2) : short;
    this.closed ||= (head[0] & 15) === CLOSE;
    this.#head = Buffer.alloc(0);
  }
}

function goodbye() {
  const why = Buffer.from("the session has ended, or moves; try again");
  const code = Buffer.alloc(2);
  code.writeUInt16BE(RESTART);
  return Buffer.concat([Buffer.from([128 | CLOSE, code.length + why.length]), code, why]);
}

class Gateway extends ConfigurableProxy {
  #upgraded = new WeakMap();

  constructor(options) {
    super(options);
    this.proxy.on("proxyReqWs", (asked, _, person) =>
      // What listens before the two are connected would take away the first that the person is sent.
      asked.on("upgrade", (_, ide) => this.proxy.once("open", () => this.#watch(ide, person)))
    );
    // A browser would wait for ever for the rest of an answer whose sender is gone.
    this.proxy.on("proxyRes", (told, _, answer) => told.on("close", () => told.complete || answer.destroy()));
  }

  #watch(ide, person) {
    const frames = new Frames();
    this.#upgraded.set(person, frames);
    ide.on("data", (sent) => frames.follow(sent));
    ide.prependListener("end", () => this.#part(person));
  }

  #part(person) {
    const frames = this.#upgraded.get(person);
    if (person.writable && frames.whole && !frames.closed) person.write(goodbye());
    frames.closed = true;
  }

  /** The waiting page knows why, and says it with everything that belongs to it, to browsers and to programs. */
  handleProxyError(code, kind, request, answer, error) {
    if (this.#upgraded.has(answer)) return this.#part(answer);
    if (kind === "ws") return answer.writable && answer.write(AWAY);
    if (answer.headersSent) return answer.destroy();
    if (code !== 503) return super.handleProxyError(code, kind, request, answer, error);
    const { socketPath } = this.proxyOptsForTarget(new URL(given["waiting-page"])).target;
    const { method, url: path } = request;
    const asked = http.request({ socketPath, method, path, headers: { accept: request.headers.accept ?? "*/*" } });
    asked.on("response", (told) => {
      answer.writeHead(told.statusCode, told.headers);
      pipeline(told, answer, () => {});
    });
    asked.on("error", () => (answer.headersSent ? answer.destroy() : answer.writeHead(code).end()));
    asked.end();
  }
}

const gateway = new Gateway({
  log: defaultLogger({ level: "warn" }),
  authToken: process.env.CONFIGPROXY_AUTH_TOKEN,
  defaultTarget: given["waiting-page"],
  xfwd: true,
  prependPath: true,
});
gateway.proxyServer.listen(Number(given.port), given.ip);
gateway.apiServer.listen(Number(given["api-port"]), "127.0.0.1");
// One connection that fails is no reason to end all others.
process.on("uncaughtException", (error) => gateway.log.error(error.stack));
