/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A parent and its workers: requests and replies are objects, and only their references go over the sockets.
 *
 * The parent owns a request until it has its answer: a worker just looks at it, and when the worker dies it goes to another.  A reply is
 * its worker's until the parent adopts it.  The cache is SLABC_RECLAIM: a reply that nobody has adopted dies with its worker, and its
 * reference is then ESTALE, which to the parent is the same as no reply.  So a kill at any instruction leaves nothing behind; here one
 * comes midway.
 */
#include <slabclient.h>

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { POOL_WORKERS = 3, POOL_REQUESTS = 300, POOL_DEADLY = POOL_REQUESTS / 2, POOL_ALARM_S = 10 };

struct message {
	unsigned number;
	unsigned n_tries;
	unsigned long long value;
};

static _Noreturn void
pool_fail(const char *what, int error)
{
	fprintf(stderr, "worker_pool: %ld: %s: %s (%s)\n", (long)getpid(), what, strerror(error), slabc_last_error());
	exit(EXIT_FAILURE); /* what this process holds is freed with it */
}

static struct slabc *
pool_open(struct slabc_cache **kp)
{
	struct slabc_cache_options opt = SLABC_CACHE_OPTIONS_INIT;
	struct slabc *c;
	int r = slabc_open(&c, NULL);

	opt.flags = SLABC_RECLAIM;
	if (r < 0 || (r = slabc_cache_open(c, "worker_pool.message", sizeof(struct message), &opt, kp)) < 0)
		pool_fail("open", -r);
	return c;
}

static _Noreturn void
worker_main(int fd)
{
	struct slabc_cache *cache;
	struct slabc *c = pool_open(&cache);
	slabc_ref ref;

	while (recv(fd, &ref, sizeof(ref), 0) == sizeof(ref)) {
		const struct message *request = slabc_deref(c, ref);
		struct message *reply = request ? slabc_alloc(cache) : NULL;

		if (!reply)
			pool_fail(request ? "slabc_alloc" : "slabc_deref", errno);
		if (request->number == POOL_DEADLY && request->n_tries == 1)
			raise(SIGKILL); /* with a reply half made */
		reply->number = request->number;
		reply->value = request->value * request->value;
		ref = slabc_ref_of(c, reply);
		if (ref == 0 || send(fd, &ref, sizeof(ref), MSG_NOSIGNAL) != sizeof(ref))
			pool_fail("reply", errno);
	}
	slabc_close(c);
	exit(EXIT_SUCCESS);
}

static int
worker_start(const struct pollfd *others, unsigned n_others)
{
	int fds[2];
	pid_t pid;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, fds) < 0 || (pid = fork()) < 0)
		pool_fail("socketpair, fork", errno);
	if (pid == 0) {
		alarm(POOL_ALARM_S);
		close(fds[0]);
		while (n_others > 0)
			close(others[--n_others].fd); /* else their workers would not see the parent's end */
		worker_main(fds[1]);
	}
	close(fds[1]);
	return fds[0];
}

/* A new request, or one that came back from the dead. */
static slabc_ref
pool_request(struct slabc *c, struct slabc_cache *cache, unsigned *n_madep, slabc_ref back)
{
	struct message *request = back ? slabc_deref(c, back) : slabc_zalloc(cache);

	if (!request)
		pool_fail("request", errno);
	request->n_tries++;
	if (!back)
		request->value = request->number = ++*n_madep;
	return slabc_ref_of(c, request);
}

/* Takes what a worker has answered and frees both; false: the reply has died with its worker. */
static bool
pool_take(struct slabc *c, struct slabc_cache *cache, slabc_ref request_ref, slabc_ref reply_ref, unsigned *n_tries)
{
	struct message *request = slabc_deref(c, request_ref), *reply = slabc_adopt(c, reply_ref);

	if (!reply && errno == ESTALE)
		return false;
	if (!request || !reply || reply->number != request->number || reply->value != request->value * request->value)
		pool_fail("reply", EBADMSG);
	*n_tries += request->n_tries;
	slabc_free_bulk(cache, 2, (void *[]){request, reply});
	return true;
}

int
main(void)
{
	slabc_ref at[POOL_WORKERS] = {0}, back[POOL_WORKERS], reply; /* at: what a worker has, back: what the dead had */
	unsigned n_done = 0, n_made = 0, n_back = 0, n_dead = 0, n_tries = 0;
	struct slabc_stats stats = SLABC_STATS_INIT;
	struct pollfd p[POOL_WORKERS];
	struct slabc_cache *cache;
	struct slabc *c;
	int status;

	alarm(POOL_ALARM_S);
	for (unsigned i = 0; i < POOL_WORKERS; i++)
		p[i] = (struct pollfd){worker_start(p, i), POLLIN, 0};
	c = pool_open(&cache);
	while (n_done < POOL_REQUESTS) {
		for (unsigned i = 0; i < POOL_WORKERS; i++) {
			if (p[i].fd < 0 || at[i] != 0 || (n_back == 0 && n_made == POOL_REQUESTS))
				continue;
			at[i] = pool_request(c, cache, &n_made, n_back > 0 ? back[--n_back] : 0);
			send(p[i].fd, &at[i], sizeof(at[i]), MSG_NOSIGNAL); /* to the dead: recv() will tell */
		}
		if (n_dead == POOL_WORKERS || poll(p, POOL_WORKERS, -1) < 0)
			pool_fail("no worker is left", errno);
		for (unsigned i = 0; i < POOL_WORKERS; i++) {
			if (p[i].fd < 0 || p[i].revents == 0)
				continue;
			if (recv(p[i].fd, &reply, sizeof(reply), 0) == sizeof(reply) && pool_take(c, cache, at[i], reply, &n_tries)) {
				n_done++;
			} else {
				close(p[i].fd);
				p[i].fd = -1;
				n_dead++;
				if (at[i] != 0)
					back[n_back++] = at[i];
			}
			at[i] = 0;
		}
	}
	for (unsigned i = 0; i < POOL_WORKERS; i++)
		close(p[i].fd);
	for (unsigned n_killed = 0; wait(&status) > 0;)
		if (status != 0 && (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL || ++n_killed > 1))
			pool_fail("a worker failed", EPROTO);
	if (slabc_get_stats(c, &stats) < 0 || stats.bytes_held != 0 || n_dead != 1 || n_tries != POOL_REQUESTS + 1)
		pool_fail("not as it should have ended", EPROTO);
	printf("worker_pool: %u requests answered, %u worker killed, its work done by another, nothing held\n", n_done, n_dead);
	slabc_close(c);
	return EXIT_SUCCESS;
}
