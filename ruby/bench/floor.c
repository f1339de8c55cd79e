/* The floor under the Rack server: what its system calls cost, without Ruby and without HTTP.
 *
 *     cc -O2 -o oroshi-rack-floor ruby/bench/floor.c
 *     oroshi-rack-floor PORT SOCKET
 *
 * One process listens at 127.0.0.1:PORT and at the unix socket SOCKET, and makes the system calls of a worker: a new
 * connection takes accept4, recv, send, and close if its request says so; a kept one is in an epoll set and takes recv
 * and send. It takes whatever one recv returns as one request, and answers with as many bytes as oroshi-rack does for
 * `run ->(env) { [200, {}, ["Hello World"]] }`. So it needs clients that send a request in one piece. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define HEAD "HTTP/1.1 200 OK\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\nContent-Length: 11\r\n"
static const char KEPT[] = HEAD "\r\nHello World";
static const char LAST[] = HEAD "Connection: close\r\n\r\nHello World";

static char scratch[65536];

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static int listener(int family, const void *address, socklen_t length, int poll) {
    int on = 1, number = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (number < 0 || setsockopt(number, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) < 0)
        fail("socket");
    if (bind(number, address, length) < 0)
        fail("bind");
    if (family == AF_INET) {
        setsockopt(number, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        setsockopt(number, IPPROTO_TCP, TCP_DEFER_ACCEPT, &on, sizeof on);
    }
    struct epoll_event event = {.events = EPOLLIN | EPOLLEXCLUSIVE, .data.fd = number};
    if (listen(number, 4096) < 0 || epoll_ctl(poll, EPOLL_CTL_ADD, number, &event) < 0)
        fail("listen");
    return number;
}

/* Serves one request. A connection that stays open is in the set afterwards. */
static void serve(int poll, int connection, int is_new) {
    ssize_t count = recv(connection, scratch, sizeof scratch, 0);
    if (count > 0) {
        int last = memmem(scratch, count, "Connection: close\r\n", 19) != NULL;
        const char *answer = last ? LAST : KEPT;
        size_t length = last ? sizeof LAST - 1 : sizeof KEPT - 1;
        if (send(connection, answer, length, MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)length)
            last = 1;
        count = !last;
    } else if (count < 0) {
        count = 1; /* nothing has arrived yet */
    }
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP, .data.fd = connection};
    if (count == 0 || (is_new && epoll_ctl(poll, EPOLL_CTL_ADD, connection, &event) < 0))
        close(connection);
}

int main(int count, char **arguments) {
    if (count != 3) {
        fprintf(stderr, "usage: oroshi-rack-floor PORT SOCKET\n");
        return 2;
    }
    int poll = epoll_create1(EPOLL_CLOEXEC);
    struct sockaddr_in tcp = {.sin_family = AF_INET, .sin_port = htons(atoi(arguments[1]))};
    tcp.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    struct sockaddr_un path = {.sun_family = AF_UNIX};
    if (strlen(arguments[2]) >= sizeof path.sun_path) {
        fprintf(stderr, "oroshi-rack-floor: %s: too long for a socket\n", arguments[2]);
        return 2;
    }
    strcpy(path.sun_path, arguments[2]);
    int listeners[] = {listener(AF_INET, &tcp, sizeof tcp, poll), listener(AF_UNIX, &path, sizeof path, poll)};
    for (;;) {
        struct epoll_event events[64];
        int ready = epoll_wait(poll, events, 64, -1);
        for (int at = 0; at < ready; at++) {
            int number = events[at].data.fd;
            if (number != listeners[0] && number != listeners[1]) {
                serve(poll, number, 0);
                continue;
            }
            for (int taken = 0; taken < 8; taken++) {
                int connection = accept4(number, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
                if (connection < 0)
                    break;
                serve(poll, connection, 1);
            }
        }
    }
}
