// The people in each session now: connections that the authorizer has let in, and its answers that are remembered. A
// right that it takes back ends here at once, for an open websocket asks nobody anything any more.
import { timingSafeEqual } from "node:crypto";

const LONGEST_BODY = 1 << 20;
// A browser that is told goodbye may take so long to hear it: milliseconds.
const FAREWELL = 500;

export class Visits {
  #open = new Map();
  #remembered = new Map();
  #most;

  constructor(most) {
    this.#most = most;
  }

  /** The authorizer's answer about such a request, while that holds. */
  recall(key) {
    const known = this.#remembered.get(key);
    if (known && known.until >= Date.now()) return known;
    this.#remembered.delete(key);
  }

  remember(key, admission, milliseconds) {
    if (this.#remembered.size >= this.#most) this.#remembered.clear();
    const known = { ...admission, until: Date.now() + milliseconds };
    this.#remembered.set(key, known);
    return known;
  }

  /** A connection of a person to a session is open until it closes by itself, or `leave` is called. */
  enter({ visit }, connection, leave) {
    const key = JSON.stringify(visit);
    if (!this.#open.has(key)) this.#open.set(key, new Map());
    const connections = this.#open.get(key);
    connections.set(connection, leave);
    connection.once("close", () => {
      connections.delete(connection);
      if (!connections.size && this.#open.get(key) === connections) this.#open.delete(key);
    });
  }

  /** [visit, number of its connections] of all that are in, or would be let in without a question. */
  all() {
    const counted = new Map([...this.#open].map(([key, connections]) => [key, connections.size]));
    for (const { visit, until } of this.#remembered.values()) {
      const key = JSON.stringify(visit);
      if (until >= Date.now() && !counted.has(key)) counted.set(key, 0);
    }
    return [...counted].map(([key, size]) => [JSON.parse(key), size]);
  }

  /** Close all connections of these visits, and forget that they were let in. */
  end(visits) {
    const ended = new Set(visits.map((visit) => JSON.stringify(visit)));
    for (const [key, { visit }] of this.#remembered) if (ended.has(JSON.stringify(visit))) this.#remembered.delete(key);
    const leaving = [...ended].flatMap((key) => [...(this.#open.get(key) ?? [])]);
    for (const [connection, leave] of leaving) {
      leave();
      setTimeout(() => connection.destroy(), FAREWELL).unref();
    }
    return leaving.length;
  }
}

/** The part of the API that is about visits; only somebody with the gateway's token is heard. */
export function visitsApi(visits, token) {
  const told = (answer, status, body = "") =>
    answer.writeHead(status, { "Content-Type": "application/json" }).end(body && JSON.stringify(body));
  const isOurs = ({ headers }) => {
    const [sent, own] = [headers.authorization ?? "", `token ${token}`].map((text) => Buffer.from(text));
    return sent.length === own.length && timingSafeEqual(sent, own);
  };
  const get = async (request, answer) => (isOurs(request) ? told(answer, 200, visits.all()) : told(answer, 403));
  const end = async (request, answer) => {
    if (!isOurs(request)) return told(answer, 403);
    let body = "";
    for await (const part of request.setEncoding("utf8"))
      if ((body += part).length > LONGEST_BODY) return told(answer, 413);
    try {
      return told(answer, 200, { closed: visits.end(JSON.parse(body)) });
    } catch {
      return told(answer, 400);
    }
  };
  return [/^\/api\/visits$/, { get, delete: end }];
}
