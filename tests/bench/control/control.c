/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a message costs: refills beside bare sockets of the same kind, one client or many at the same pace.
 *
 *   control MEASURE SOCKET CLIENTS ROUNDS PACE
 *
 *   MEASURE  ping     packets between two processes, the other end a loop of recv and send
 *            echo     the other end one epoll loop for all clients
 *            one      REFILL of one object (a cache without sheaves: slabc_alloc() is a round trip)
 *            many     REFILL of 896 objects in one message (slabc_prefill())
 *            sheaves  16,384 objects allocated one by one, then freed: as many messages as that takes
 *            parse    no message: a REFILL unpacked 1,000 times
 *   CLIENTS  processes; ROUNDS of each; PACE: messages a second of all together, 0: as fast as they can
 *
 * Prints "p50 p99" in microseconds.  Whatever a client does besides, giving the objects back, lies outside the time that is taken.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "client/slabclient.h"
#include "proto/codec.h"

enum { MAX_CLIENTS = 64, MAX_ROUNDS = 20000, PACKET_BYTES = 16, MANY = 896, OBJECT_BYTES = 256, N_OBJECTS = 16384, N_PARSED = 1000 };

struct client {
	int fd;
	struct slabc *c;
	struct slabc_cache *k;
};

static struct options {
	const char *measure;
	const char *socket;
	unsigned n_clients, n_rounds;
	double pace;
} options;

static _Noreturn void
die(const char *what)
{
	fprintf(stderr, "control: %s: %s; %s\n", what, strerror(errno), slabc_last_error());
	exit(1);
}

static uint64_t
now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static bool
is_bare(void)
{
	return strcmp(options.measure, "ping") == 0 || strcmp(options.measure, "echo") == 0;
}

/* Sends back what comes, until nobody is left. */
static _Noreturn void
serve(const int *fds, unsigned n)
{
	char packet[PACKET_BYTES];
	int epoll = epoll_create1(0);

	for (unsigned i = 0; i < n && n > 1; i++) {
		struct epoll_event event = {.events = EPOLLIN, .data.fd = fds[i]};

		if (epoll_ctl(epoll, EPOLL_CTL_ADD, fds[i], &event) < 0)
			die("epoll_ctl");
	}
	for (unsigned n_left = n; n_left;) {
		struct epoll_event events[MAX_CLIENTS] = {{.data.fd = fds[0]}};
		int n_events = n > 1 ? epoll_wait(epoll, events, MAX_CLIENTS, -1) : 1;

		for (int i = 0; i < n_events; i++) {
			ssize_t got = recv(events[i].data.fd, packet, sizeof packet, 0);

			if (got > 0 && send(events[i].data.fd, packet, (size_t)got, MSG_NOSIGNAL) == got)
				continue;
			close(events[i].data.fd);
			n_left--;
		}
	}
	exit(0);
}

static void
client_open(struct client *client)
{
	struct slabc_options o = SLABC_OPTIONS_INIT;
	struct slabc_cache_options ko = SLABC_CACHE_OPTIONS_INIT;
	char name[32];

	o.socket = options.socket;
	if (strcmp(options.measure, "one") == 0)
		ko.sheaf_capacity = SLABC_SHEAVES_NONE;
	snprintf(name, sizeof name, "control.%s", options.measure);
	if (slabc_open(&client->c, &o) < 0 || slabc_cache_open(client->c, name, OBJECT_BYTES, &ko, &client->k) < 0)
		die("no session");
}

static void
parse(void)
{
	const union proto_request said = {.refill = {.cache = 1, .n_sheaves = 16}};
	union proto_request heard;
	unsigned char packet[64];
	char why[PROTO_SENTENCE_BYTES];
	enum proto_op op;
	uint32_t id;
	int n = proto_pack_request(packet, sizeof packet, PROTO_OP_REFILL, 1000, &said);

	for (unsigned i = 0; i < N_PARSED; i++)
		if (n < 0 || proto_unpack_request(packet, (size_t)n, &op, &id, &heard, why, sizeof why) != 0)
			die("a REFILL that cannot be unpacked");
}

static void
allocate_and_free(struct slabc_cache *k)
{
	static void *p[N_OBJECTS];

	for (unsigned i = 0; i < N_OBJECTS; i++)
		if (!(p[i] = slabc_alloc(k)))
			die("slabc_alloc");
	for (unsigned i = 0; i < N_OBJECTS; i++)
		slabc_free(k, p[i]);
}

/* One message and its answer; the time it took. */
static uint64_t
ask(struct client *client)
{
	uint64_t start = now_ns(), took;

	if (is_bare()) {
		char packet[PACKET_BYTES] = {0};

		if (send(client->fd, packet, sizeof packet, 0) != sizeof packet || recv(client->fd, packet, sizeof packet, 0) <= 0)
			die("the other end has ended");
		took = now_ns() - start;
	} else if (strcmp(options.measure, "one") == 0) {
		void *p = slabc_alloc(client->k);

		took = now_ns() - start;
		if (!p)
			die("slabc_alloc");
		slabc_free(client->k, p);
	} else if (strcmp(options.measure, "sheaves") == 0) {
		allocate_and_free(client->k);
		took = now_ns() - start;
	} else if (strcmp(options.measure, "parse") == 0) {
		parse();
		took = now_ns() - start;
	} else {
		struct slabc_sheaf *s = slabc_prefill(client->k, MANY);

		took = now_ns() - start;
		if (!s)
			die("slabc_prefill");
		slabc_return(client->k, s);
	}
	return took;
}

static _Noreturn void
run_client(struct client *client, unsigned number, uint64_t *samples)
{
	/* A cache without sheaves gives back by a message too. */
	unsigned n_messages = strcmp(options.measure, "one") == 0 ? 2 : 1;
	uint64_t step = options.pace > 0 ? (uint64_t)(1e9 * n_messages * options.n_clients / options.pace) : 0;
	uint64_t due = now_ns() + step * number / options.n_clients;

	if (!is_bare() && strcmp(options.measure, "parse") != 0)
		client_open(client);
	for (unsigned i = 0; i < options.n_rounds; i++) {
		struct timespec at = {.tv_sec = (time_t)(due / 1000000000), .tv_nsec = (long)(due % 1000000000)};

		if (step)
			clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
		samples[i] = ask(client);
		due += step;
	}
	exit(0);
}

static int
compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

/* The first tenth of each client's rounds warms up. */
static void
print(uint64_t *samples)
{
	unsigned n_cold = options.n_rounds / 10, n_warm = options.n_rounds - n_cold;
	size_t n = 0;

	for (unsigned i = 0; i < options.n_clients; i++)
		for (unsigned j = 0; j < n_warm; j++)
			samples[n++] = samples[(size_t)i * options.n_rounds + n_cold + j];
	qsort(samples, n, sizeof samples[0], compare);
	printf("%.1f %.1f\n", (double)samples[n / 2] / 1e3, (double)samples[n * 99 / 100] / 1e3);
}

int
main(int argc, char **argv)
{
	int ends[MAX_CLIENTS];
	struct client clients[MAX_CLIENTS] = {0};
	uint64_t *samples;
	pid_t server = 0;
	int status, n_failed = 0;

	if (argc != 6)
		die("usage: control ping|echo|one|many|sheaves|parse SOCKET CLIENTS ROUNDS PACE");
	options = (struct options){argv[1], argv[2], (unsigned)atoi(argv[3]), (unsigned)atoi(argv[4]), atof(argv[5])};
	if (options.n_clients < 1 || options.n_clients > MAX_CLIENTS || options.n_rounds < 10 || options.n_rounds > MAX_ROUNDS)
		die("CLIENTS is 1 to 64, ROUNDS 10 to 20000");
	samples = mmap(NULL, sizeof(uint64_t) * options.n_clients * options.n_rounds, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (samples == MAP_FAILED)
		die("no memory");
	for (unsigned i = 0; i < options.n_clients && is_bare(); i++) {
		int pair[2];

		if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
			die("socketpair");
		clients[i].fd = pair[0];
		ends[i] = pair[1];
	}
	if (is_bare() && (server = fork()) == 0) {
		for (unsigned i = 0; i < options.n_clients; i++)
			close(clients[i].fd);
		serve(ends, options.n_clients);
	}
	for (unsigned i = 0; i < options.n_clients; i++) {
		pid_t pid = fork();

		if (pid < 0)
			die("fork");
		if (pid == 0) {
			for (unsigned j = 0; j < options.n_clients && is_bare(); j++) {
				close(ends[j]);
				if (j != i)
					close(clients[j].fd);
			}
			run_client(&clients[i], i, samples + (size_t)i * options.n_rounds);
		}
	}
	for (unsigned i = 0; i < options.n_clients && is_bare(); i++) {
		close(clients[i].fd);
		close(ends[i]);
	}
	while (wait(&status) > 0)
		n_failed += status != 0;
	if (n_failed)
		die("a process of the measurement failed");
	print(samples);
	return 0;
}
