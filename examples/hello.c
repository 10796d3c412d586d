/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The smallest whole program: a session, a cache, an object; written, read, freed; and what an error looks like.
 *
 *     SLABD_SOCKET=/run/slabd/slabd.sock ./hello
 */
#include <slabclient.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HELLO_ALARM_S 10

struct greeting {
	unsigned n_bytes;
	char text[60];
};

/* After a failed call the library has a sentence about it, until the thread's next call. */
static int
hello_fail(const char *what, int error)
{
	fprintf(stderr, "hello: %s: %s (%s)\n", what, strerror(error), slabc_last_error());
	return EXIT_FAILURE;
}

static int
hello_run(struct slabc *c)
{
	struct slabc_cache *cache, *other;
	struct greeting *g;
	int r;

	r = slabc_cache_open(c, "hello.greeting", sizeof(*g), NULL, &cache);
	if (r < 0)
		return hello_fail("slabc_cache_open", -r);

	g = slabc_alloc(cache);
	if (!g)
		return hello_fail("slabc_alloc", errno);
	g->n_bytes = (unsigned)snprintf(g->text, sizeof(g->text), "hello from process %ld", (long)getpid());
	printf("hello: client %u wrote %u bytes: %s\n", slabc_client_id(c), g->n_bytes, g->text);

	/* slabc_free returns nothing and keeps errno, unless it refuses. */
	errno = 0;
	slabc_free(cache, g);
	if (errno != 0)
		return hello_fail("slabc_free", errno);

	/* A cache is there with one size: this is refused, and the sentence says what is wrong. */
	r = slabc_cache_open(c, "hello.greeting", sizeof(*g) * 2, NULL, &other);
	if (r != -EEXIST)
		return hello_fail("a second size was not refused", -r);
	printf("hello: as it should be, refused: %s\n", slabc_last_error());

	slabc_cache_close(cache);
	return EXIT_SUCCESS;
}

int
main(void)
{
	struct slabc *c;
	int r;

	alarm(HELLO_ALARM_S);
	r = slabc_open(&c, NULL);
	if (r < 0)
		return hello_fail("slabc_open", -r);
	r = hello_run(c);
	slabc_close(c);
	return r;
}
