/**
 * A client of `oroshi push` for browsers, Node 18 and later, Deno and Bun: channels over WebSocket, server-sent events
 * or polling. It reconnects by itself, recovers what was missed, and says so where that is not possible.
 */
/** A place in a channel with a history. */
export interface Position {
    epoch: string;
    offset: number;
}
/** A client as others see it. */
export interface Member {
    client: string;
    user?: string;
}
/** Who subscribes to a channel. */
export interface Present {
    /** How many clients. */
    clients: number;
    /** The clients; absent if too many are there, or come and go: then the number alone is told. */
    list?: Member[];
}
/** A message of a channel, or to this session, its user or everybody. */
export interface Publication extends Partial<Position> {
    /** Absent unless it was published to a channel. */
    channel?: string;
    /** The client that published it; absent if the backend did. */
    from?: Member;
    /** The message as text; JSON too. */
    text?: string;
    /** The message as base64, if it is bytes. */
    base64?: string;
    /** The offset of the channel's message before it, if offsets do not grow by one. */
    prev?: number;
}
/** What happened to a subscription. */
export interface Subscribed extends Partial<Position> {
    channel: string;
    /**
     * Only after a reconnection, or with `since`: true if all missed messages follow; false if some may be lost, so that
     * the state must be read anew.
     */
    recovered?: boolean;
    /** The channel keeps its newest value only. */
    latest?: boolean;
    /** The hub sends what differs from the message before. */
    delta?: boolean;
    /** Only if the subscription asks for it: who subscribes, this client included. */
    presence?: Present;
}
/** The callbacks and options of a subscription. */
export interface SubscribeOptions {
    /** Called with each message, in order. */
    message?: (publication: Publication) => void;
    /** Called when the hub has subscribed the client, at first and after each reconnection. */
    subscribed?: (subscribed: Subscribed) => void;
    /** Called when the subscription has ended for good: `forbidden`, or another error of the hub. */
    ended?: (error: string) => void;
    /** Recover from here. */
    since?: Position;
    /** The channel keeps its newest value only: holes between positions mean nothing. Hubs say so themselves. */
    latest?: boolean;
    /** Let the hub send what differs from the message before, if the channel has that. `message` gets whole texts. */
    delta?: boolean;
    /** Be told who comes and goes. The rule of the channel must have `presence-events`. */
    presence?: boolean;
    /** Called with who is there, in place of all that was told before: at first, after each reconnection, and later. */
    clients?: (present: Present) => void;
    /** Called with another client that has come. */
    joined?: (member: Member) => void;
    /** Called with another client that has gone. */
    left?: (member: Member) => void;
}
export type Transport = 'websocket' | 'sse' | 'poll';
export type State = 'connecting' | 'connected' | 'waiting' | 'closed';
/** The options of a client. */
export interface Options {
    /** A token (JWT), or a function that gets one. It is called again before a token ends, and after a refusal. */
    token?: string | (() => string | Promise<string>);
    /** The transports to try, in this order. All three unless given. */
    transports?: Transport[];
    /** Send cookies to a hub of another origin. */
    credentials?: boolean;
    /** The longest time to wait for a connection or an answer, milliseconds: 10,000 unless given. */
    timeout?: number;
    /** The longest pause between two attempts, milliseconds: 30,000 unless given. */
    longestPause?: number;
    /** Called with messages that come without a channel. */
    message?: (publication: Publication) => void;
    /** Called when messages are missing, of channels that the hub does not name; null: an unknown number. */
    gap?: (lost: number | null) => void;
    /** Called when the state changes. `why` says why the client is not connected. */
    state?: (state: State, why?: string) => void;
}
/** An error of the hub: `forbidden`, `too-fast`, ...; or `disconnected`, `timeout`. */
export declare class PushError extends Error {
    readonly error: string;
    constructor(error: string, message: string);
}
/** A client of a hub. It connects when it is made, and stays connected until `close`. */
export declare class Push {
    #private;
    /** What the client is doing. */
    state: State;
    /** The transport in use. */
    transport?: Transport;
    /** The name by which other clients know this one, while it is connected. */
    client?: string;
    /** The user of the token, if it has one. */
    user?: string;
    /** @param url The hub's `/connect`, with http(s) or ws(s). */
    constructor(url: string, options?: Options);
    /** Subscribes to a channel, or to all with a prefix (`news:*`). It stays subscribed through reconnections. */
    subscribe(channel: string, options: SubscribeOptions | ((publication: Publication) => void)): void;
    /** Ends a subscription. */
    unsubscribe(channel: string): void;
    /** Publishes a text, bytes, or anything else as JSON. It rejects if the message is not in the hub's queues. */
    publish(channel: string, data: unknown): Promise<void>;
    /** Returns who subscribes to a channel: how many, and at most 1,000 of them. */
    presence(channel: string): Promise<{
        clients: number;
        list: Member[];
    }>;
    /** Returns the newest messages of a channel, oldest first. */
    history(channel: string, limit?: number): Promise<Partial<Position> & {
        messages: Publication[];
    }>;
    /** Disconnects for good. */
    close(): void;
}
