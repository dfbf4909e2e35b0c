// configurable-http-proxy, with a word for everybody whose request or websocket breaks off because its session ends:
// by itself it answers without Retry-After, leaves half an answer hanging, and hangs up on websockets.
import http from "node:http";
import net from "node:net";
import { pipeline } from "node:stream";
import { parseArgs } from "node:util";
import { ConfigurableProxy } from "configurable-http-proxy/lib/configproxy.js";
import { defaultLogger } from "configurable-http-proxy/lib/log.js";
import { Visits, visitsApi } from "./visits.mjs";

const text = { type: "string" };
const names = ["ip", "second-ip", "port", "api-port", "waiting-page", "authorizer", "main"];
const options = Object.fromEntries(names.map((name) => [name, text]));
const { values: given } = parseArgs({ options });

// "Service Restart" (RFC 6455, registry of close codes), so that whoever hears it may come again.
const RESTART = [1012, "the session has ended, or moves; try again"];
// "Policy Violation" of the same registry.
const TAKEN_BACK = [1008, "you may not use this session any more"];
const CLOSE = 8;
const AWAY = "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";

// Answers of the authorizer are remembered so long: milliseconds. A page makes dozens of requests at once. It takes one
// back when it doesn't hold any more; while it goes on looking, it lets those about owners be remembered for longer.
const REMEMBERED = 15000;
const MOST_REMEMBERED = 10000;
// An authorizer that stands still is waited for so long: milliseconds.
const PATIENCE = 10000;
const SESSIONS = "/session/";
const ENTRY = "/authorizer";
// The address below whose host each person has one; undefined: there are no such hosts.
const MAIN = given.main && new URL(given.main);
// Cookies that no IDE needs to see.
const OWN_COOKIE = /^(__Host-)?(refit-|jupyterhub-)/;
const NOT_HERE = { status: 403, headers: {}, body: "this is at another host\n" };
const FOREIGN = { status: 403, headers: {}, body: "a page elsewhere asks for this\n" };
const REFUSED = "HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
const BAD = "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";

// Of a request: its route, the token that was added, how it was passed on last, and how often again. Of a connection: its key.
const [MATCH, ADDED, PASSED, AGAIN, KEY] = ["match", "added", "passed", "again", "key"].map((name) => Symbol(name));
const MOST_AGAIN = 5;

/** A service worker of a session must not answer for other pages of its origin: the header that widens its scope goes. */
function keepWorkersInside(headers, url) {
  const allowed = headers["service-worker-allowed"];
  if (allowed === undefined) return;
  const [inside] = url.match(/^\/session\/[^/?#]+/) ?? [];
  if (!inside) return;
  // A browser reads it as an address that may be relative, with `..` and escapes. One that isn't plain goes.
  const path = /^\/(?!\/)[\w./~@+-]*$/.test(allowed) ? new URL(allowed, "http://session").pathname : "";
  if (!path.startsWith(`${inside}/`)) delete headers["service-worker-allowed"];
}

/** An IDE that leads on with all that it was asked for, as VS Code does, tells no browser the token that was added. */
function keepTokenInside(headers, token) {
  if (!token || !headers.location?.includes(token)) return;
  const [address, ...fragment] = headers.location.split("#");
  const [path, ...query] = address.split("?");
  const kept = query.join("?").split("&").filter((part) => part && !part.includes(token));
  const whole = [kept.length ? `${path}?${kept.join("&")}` : path, ...fragment].join("#");
  headers.location = whole.includes(token) ? "." : whole || "?";
}

/** An IDE sets cookies for its own session: none that Refit or the Hub reads, for no other host, and below its path. */
function keepCookiesInside(headers, url) {
  if (!headers["set-cookie"]) return;
  const [inside] = url.match(/^\/session\/[^/?#]+/) ?? [];
  if (!inside) return;
  const own = headers["set-cookie"].filter((cookie) => !OWN_COOKIE.test(cookie.trim()));
  headers["set-cookie"] = own.map((cookie) => {
    const [value, ...attributes] = cookie.split(";").map((part) => part.trim());
    const said = attributes.map((part) => part.split("=", 2)).filter(([name]) => name.toLowerCase() === "path");
    const path = said.at(-1)?.[1] ?? ""; // of several, the last counts
    const others = attributes.filter((part) => !/^(path|domain)\b/i.test(part));
    const isInside = path === inside || (path.startsWith(`${inside}/`) && !/[/\\]\.|%/.test(path));
    return [value, ...others, `Path=${isInside ? path : `${inside}/`}`].join("; ");
  });
}

/** A redirect to the address at which the gateway reaches an IDE leads no browser anywhere: its path alone is told. */
function keepRedirectsUseful({ headers, socket }) {
  if (!/^https?:/i.test(headers.location ?? "") || !socket?.remotePort || !URL.canParse(headers.location)) return;
  const { hostname, port, pathname, search, hash } = new URL(headers.location);
  const own = [socket.remoteAddress, "localhost", "127.0.0.1"]; // as it is called inside of its container, too
  if (!own.includes(hostname) || Number(port) !== socket.remotePort) return;
  headers.location = `/${pathname.replace(/^\/+/, "")}${search}${hash}`; // two slashes would begin the name of a host
}

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

function goodbye([number, text]) {
  const why = Buffer.from(text);
  const code = Buffer.alloc(2);
  code.writeUInt16BE(number);
  return Buffer.concat([Buffer.from([128 | CLOSE, code.length + why.length]), code, why]);
}

/** Whether a person opens a page, in contrast to what a page or a program asks for. */
function isPage(kind, request) {
  return kind === "web" && request.method === "GET" && (request.headers.accept ?? "").includes("text/html");
}

/** Whether a page of another origin makes the browser ask. Following a link is no such thing, nor is a program. */
function isForeign(kind, { method, headers }) {
  if (headers.authorization) return false;
  if (headers.origin) {
    const hosts = [headers.host, ...(headers["x-forwarded-host"] ?? "").split(/, */)];
    if (!hosts.includes(headers.origin.replace(/^https?:\/\//, ""))) return true;
  }
  const isLink = kind === "web" && method === "GET" && headers["sec-fetch-mode"] === "navigate";
  return ["cross-site", "same-site"].includes(headers["sec-fetch-site"]) && !isLink;
}

/** The host of a request, without the port that browsers leave out. */
function hostOf({ host = "" }) {
  const named = host.toLowerCase();
  return MAIN.port ? named : named.replace(/:(80|443)$/, "");
}

/** Whether a browser that shows a page came by another name of this machine, at which the Hub's cookies don't count. */
function isOtherName({ headers }, host) {
  if (MAIN.hostname !== "localhost" || headers["sec-fetch-mode"] !== "navigate" || host === MAIN.host) return false;
  const { hostname, port } = URL.canParse(`http://${host}`) ? new URL(`http://${host}`) : {};
  if (port !== MAIN.port) return false;
  return ["localhost", "localhost."].includes(hostname) || net.isIP(hostname.replace(/^\[|\]$/g, "")) > 0;
}

/** Whether a page is asked for at a person's host that isn't there: where scripts of sessions run, nobody logs in. */
function isMisplaced(request, prefix) {
  // A gateway that has just begun knows no session yet: their paths lead to the waiting page, which all else is led to.
  const isUnknown = prefix === "/" && request.url.startsWith(SESSIONS);
  if (!MAIN || prefix === ENTRY || prefix.startsWith(SESSIONS) || isUnknown) return false;
  const host = hostOf(request.headers);
  return host.endsWith(`.${MAIN.host}`) || isOtherName(request, host);
}

/** Headers with another value of one of them, or without it. A copy: to delete one makes all later reading of them slow. */
function exchanged(headers, name, value) {
  const { [name]: _, ...others } = headers;
  return value ? { ...others, [name]: value } : others;
}

/** By what an answer of the authorizer is remembered. A connection has one for its requests: to look a new one up costs more. */
function keyOf({ headers: { cookie, authorization, host }, socket }, prefix) {
  const parts = [prefix, cookie, authorization, host];
  const [key, ...before] = socket[KEY] ?? [];
  if (before.length && parts.every((part, place) => part === before[place])) return key;
  // No header has a line's end in it, and so no two requests of others have the same key.
  const made = parts.map((part) => part ?? "").join("\n");
  socket[KEY] = [made, ...parts];
  return made;
}

/** The cookies of a request that an IDE may see; undefined: none. */
function withoutOwn(cookie) {
  const cookies = (cookie ?? "").split(/; */).filter((one) => one && !OWN_COOKIE.test(one));
  return cookies.length ? cookies.join("; ") : undefined;
}

class Gateway extends ConfigurableProxy {
  #upgraded = new WeakMap();

  constructor(options) {
    super(options);
    this.proxy.on("proxyReqWs", (asked, _, person) =>
      // What listens before the two are connected would take away the first that the person is sent.
      asked.on("upgrade", (_, ide) => this.proxy.once("open", () => this.#watch(ide, person)))
    );
    // Services at sockets would hang up as soon as they have answered; a gateway that isn't done with sending by then takes
    // that for a failure (EPIPE), and loses the answer. So it hangs up itself, at the end of the answer.
    this.proxy.on("proxyReq", (asked, request, _, { target }) => {
      request[PASSED] = asked;
      if (target.socketPath && !asked.headersSent) asked.setHeader("connection", "keep-alive");
    });
    this.apiHandlers.push(visitsApi(this.#visits, options.authToken));
    // A browser would wait for ever for the rest of an answer whose sender is gone.
    this.proxy.on("proxyRes", (told, request, answer) => {
      keepWorkersInside(told.headers, request.url);
      keepCookiesInside(told.headers, request.url);
      keepRedirectsUseful(told);
      keepTokenInside(told.headers, request[ADDED]);
      told.on("close", () => told.complete || answer.destroy());
    });
  }

  #visits = new Visits(MOST_REMEMBERED, REMEMBERED);
  #asking = new Map();
  #authorizerAgent = new http.Agent({ keepAlive: true, maxSockets: 32 });

  /** An answer of the authorizer is about the session that was there then. */
  addRoute(path, data) {
    if (#visits in this) this.#visits.forget(this._routes.cleanPath(path)); // not yet, for the routes of its own
    return super.addRoute(path, data);
  }

  removeRoute(path) {
    this.#visits.forget(this._routes.cleanPath(path));
    return super.removeRoute(path);
  }

  /** The route that the authorizer was asked about, whatever has become of it meanwhile. */
  async targetForReq(request) {
    return request[MATCH] ?? super.targetForReq(request);
  }

  /** Where people log in, the authorizer is asked about each request for a session before anything of it gets there. */
  async handleProxy(kind, request, answer, ...rest) {
    if (!given.authorizer) return super.handleProxy(kind, request, answer, ...rest);
    try {
      const match = await super.targetForReq(request);
      request[MATCH] = match;
      if (match && isMisplaced(request, match.prefix)) return this.#lead(kind, request, answer);
      if (match?.prefix.startsWith(SESSIONS) && !(await this.#admit(kind, request, answer, match.prefix))) return;
    } catch (error) {
      this.log.warn("a request was refused: %s", error.message);
      return kind === "ws" ? answer.end(BAD) : answer.headersSent || answer.writeHead(400).end();
    }
    return super.handleProxy(kind, request, answer, ...rest);
  }

  async #admit(kind, request, answer, prefix) {
    const { cookie, authorization } = request.headers;
    if (isForeign(kind, request)) return this.#refuse(kind, answer, FOREIGN);
    const key = keyOf(request, prefix);
    let known = this.#visits.recall(key);
    if (!known) {
      const told = await this.#askOnce(key, kind, request, prefix);
      if (told.status !== 200) return this.#refuse(kind, answer, told);
      known = this.#visits.remember(key, { ...JSON.parse(told.body), cookie: withoutOwn(cookie) });
    }
    // Somebody who went away meanwhile would never be seen to leave.
    if (answer.destroyed) return false;
    this.#visits.enter(known, answer, kind === "ws" ? () => this.#part(answer, TAKEN_BACK) : () => answer.destroy());
    if (cookie !== known.cookie) request.headers = exchanged(request.headers, "cookie", known.cookie);
    if (known.authorization !== undefined)
      request.headers = exchanged(request.headers, "authorization", known.authorization);
    if (isPage(kind, request)) this.#addToken(request, known);
    return true;
  }

  /** Of requests that come at once, as those of a page do, one asks for all; where a page leads is asked for each. */
  #askOnce(key, kind, request, prefix) {
    if (isPage(kind, request)) return this.#askAuthorizer(kind, request, prefix);
    if (!this.#asking.has(key)) {
      const forget = () => this.#asking.delete(key);
      this.#asking.set(key, this.#askAuthorizer(kind, request, prefix).finally(forget));
    }
    return this.#asking.get(key);
  }

  /** A question for a page is led to the same place at the main host, and all else is refused. */
  #lead(kind, { method, url }, answer) {
    const isQuestion = ["GET", "HEAD"].includes(method) && url.startsWith("/");
    const headers = { Location: `${MAIN.origin}${url}`, "Cache-Control": "no-store" };
    return this.#refuse(kind, answer, isQuestion ? { status: 302, headers, body: "" } : NOT_HERE);
  }

  #refuse(kind, answer, told) {
    if (kind === "ws") answer.end(REFUSED);
    else answer.writeHead(told.status, told.headers).end(told.body);
    return false;
  }

  /** No link has the token of an IDE: it is added on the way, to the pages that the authorizer names. */
  #addToken(request, { queries, token }) {
    const [path, asked = ""] = request.url.split("?", 2);
    if (!Object.hasOwn(queries, path)) return;
    const others = asked.split("&").filter((part) => part && !part.startsWith("token="));
    request.url = `${path}?${[...others, queries[path]].join("&")}`;
    request[ADDED] = token;
  }

  #askAuthorizer(kind, request, prefix) {
    const { socketPath } = this.proxyOptsForTarget(new URL(given.authorizer)).target;
    const passed = ["cookie", "authorization", "x-forwarded-proto"].filter((name) => request.headers[name]);
    const headers = {
      ...Object.fromEntries(passed.map((name) => [name, request.headers[name]])),
      host: "authorizer",
      "x-refit-session": prefix.slice(SESSIONS.length).split("/")[0],
      "x-refit-url": request.url,
      "x-refit-host": request.headers.host ?? "",
      "x-refit-kind": isPage(kind, request) ? "page" : "other",
    };
    const question = { socketPath, path: "/admit", headers, timeout: PATIENCE, agent: this.#authorizerAgent };
    return new Promise((done, failed) => {
      const asked = http.request(question, (told) => {
        let body = "";
        told.setEncoding("utf8").on("data", (part) => (body += part));
        told.on("end", () => done({ status: told.statusCode, headers: told.headers, body }));
        told.on("error", failed);
      });
      asked.on("timeout", () => asked.destroy(new Error("the authorizer doesn't answer")));
      asked.on("error", ({ code }) =>
        // It may have closed a kept connection in the moment in which it was asked by it; that has let nobody in.
        asked.reusedSocket && ["ECONNRESET", "EPIPE"].includes(code)
          ? done(this.#askAuthorizer(kind, request, prefix))
          : done({ status: 503, headers: { "Retry-After": "1" }, body: "the authorizer is away\n" })
      );
      asked.end();
    });
  }

  #watch(ide, person) {
    const frames = new Frames();
    this.#upgraded.set(person, frames);
    ide.on("data", (sent) => frames.follow(sent));
    ide.prependListener("end", () => this.#part(person, RESTART));
  }

  /** Say goodbye between two frames; amid one nobody would understand it. */
  #part(person, why) {
    const frames = this.#upgraded.get(person);
    if (frames && person.writable && frames.whole && !frames.closed) person.write(goodbye(why));
    if (frames) frames.closed = true;
    if (why === TAKEN_BACK) person.end();
  }

  /** An IDE may close a kept connection in the moment in which it is used again. Questions alone are asked once more. */
  #mayAskAgain(request, answer, { code } = {}) {
    const { method, headers } = request;
    const changes = !["GET", "HEAD"].includes(method) || headers["content-length"] || headers["transfer-encoding"];
    const wasClosed = request[PASSED]?.reusedSocket && ["ECONNRESET", "EPIPE"].includes(code);
    return !changes && wasClosed && !answer.destroyed && (request[AGAIN] ?? 0) < MOST_AGAIN;
  }

  /** Only where the session still is: one that moves is behind the waiting page by now. */
  async #askAgain(kind, request, answer) {
    const { headers } = request;
    const now = await super.targetForReq(request);
    if (request[MATCH] && now?.target !== request[MATCH].target) return this.#showWaitingPage(request, answer);
    request[AGAIN] = (request[AGAIN] ?? 0) + 1;
    // Each time that it is passed on, the proxy adds to them who asks.
    for (const name of ["x-forwarded-for", "x-forwarded-port", "x-forwarded-proto"])
      headers[name] = headers[name].split(",").slice(0, -1).join(",");
    return super.handleProxy(kind, request, answer);
  }

  handleProxyError(code, kind, request, answer, error) {
    if (this.#upgraded.has(answer)) return this.#part(answer, RESTART);
    if (kind === "ws") return answer.writable && answer.write(AWAY);
    if (answer.headersSent) return answer.destroy();
    if (this.#mayAskAgain(request, answer, error)) return this.#askAgain(kind, request, answer);
    if (code !== 503) return super.handleProxyError(code, kind, request, answer, error);
    return this.#showWaitingPage(request, answer);
  }

  /** The waiting page knows why, and says it with everything that belongs to it, to browsers and to programs. */
  #showWaitingPage(request, answer) {
    const { socketPath } = this.proxyOptsForTarget(new URL(given["waiting-page"])).target;
    const { method, url: path } = request;
    const asked = http.request({ socketPath, method, path, headers: { accept: request.headers.accept ?? "*/*" } });
    asked.on("response", (told) => {
      answer.writeHead(told.statusCode, told.headers);
      pipeline(told, answer, () => {});
    });
    asked.on("error", () => (answer.headersSent ? answer.destroy() : answer.writeHead(503).end()));
    asked.end();
  }
}

const log = defaultLogger({ level: "warn" });
// The proxy has something to say of each request. The logger would make a line of it before it drops that.
log.debug = log.info = () => {};

const gateway = new Gateway({
  log,
  authToken: process.env.CONFIGPROXY_AUTH_TOKEN,
  defaultTarget: given["waiting-page"],
  xfwd: true,
  prependPath: true,
});

/** A gateway that can't listen would live on, deaf, for one connection that fails ends nothing: it ends, to be started again. */
function listen(server, port, host, forgiven = []) {
  server.on("error", (error) => {
    if (forgiven.includes(error.code)) return;
    gateway.log.error(error.stack);
    if (!server.listening) process.exit(1);
  });
  server.listen(Number(port), host);
}

listen(gateway.proxyServer, given.port, given.ip);
// Browsers look for localhost at both loopback addresses: nobody else may answer at the other one.
const NO_SUCH_ADDRESS = ["EADDRNOTAVAIL", "EAFNOSUPPORT"];
if (given["second-ip"]) {
  const taking = { allowHalfOpen: true, noDelay: true };
  const second = net.createServer(taking, (person) => gateway.proxyServer.emit("connection", person));
  listen(second, given.port, given["second-ip"], NO_SUCH_ADDRESS);
}
listen(gateway.apiServer, given["api-port"], "127.0.0.1");
// One connection that fails is no reason to end all others.
process.on("uncaughtException", (error) => gateway.log.error(error.stack));
