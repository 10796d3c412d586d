/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two processes, one object, one kill.
 *
 * The maker makes an object, sends its reference through a pipe, and is killed while it holds the object.  The cache is a default one, so
 * what the dead held stays; the taker becomes its owner, reads it and frees it.  The reference, used once more, is ESTALE: it never leads
 * to whatever has the memory next.
 */
#include <slabclient.h>

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define PASS_ALARM_S 10

struct note {
	pid_t maker;
	char text[56];
};

static int
pass_fail(const char *who, const char *what, int error)
{
	fprintf(stderr, "pass_ref: %s: %s: %s (%s)\n", who, what, strerror(error), slabc_last_error());
	return EXIT_FAILURE;
}

/* A session of the process's own: none is inherited over fork(). */
static int
pass_open(struct slabc **cp, struct slabc_cache **kp)
{
	int r = slabc_open(cp, NULL);

	return r < 0 ? r : slabc_cache_open(*cp, "pass_ref.note", sizeof(struct note), NULL, kp);
}

static int
maker_main(int to)
{
	struct slabc_cache *cache;
	struct slabc *c;
	struct note *note;
	slabc_ref ref;
	int r;

	alarm(PASS_ALARM_S);
	r = pass_open(&c, &cache);
	if (r < 0)
		return pass_fail("maker", "open", -r);
	note = slabc_alloc(cache);
	if (!note)
		return pass_fail("maker", "slabc_alloc", errno);
	note->maker = getpid();
	snprintf(note->text, sizeof(note->text), "written by one who is dead");
	ref = slabc_ref_of(c, note);
	if (ref == 0)
		return pass_fail("maker", "slabc_ref_of", errno);
	/* The pipe orders the two processes: all that was written before is seen by who has read the reference. */
	if (write(to, &ref, sizeof(ref)) != sizeof(ref))
		return pass_fail("maker", "write", errno);
	for (;;)
		pause();
}

static int
taker_take(struct slabc *c, struct slabc_cache *cache, slabc_ref ref, pid_t maker)
{
	struct note *note = slabc_adopt(c, ref);

	if (!note)
		return pass_fail("taker", "slabc_adopt", errno);
	if (note->maker != maker)
		return pass_fail("taker", "another maker's note", EBADMSG);
	printf("pass_ref: the taker has adopted %#llx: \"%s\"\n", (unsigned long long)ref, note->text);
	errno = 0;
	slabc_free(cache, note);
	if (errno != 0)
		return pass_fail("taker", "slabc_free", errno);
	errno = 0;
	if (slabc_adopt(c, ref) || errno != ESTALE)
		return pass_fail("taker", "a stale reference was adopted", errno);
	if (slabc_deref(c, ref) || errno != ESTALE || slabc_free_ref(c, ref) != -ESTALE)
		return pass_fail("taker", "a stale reference was taken", errno);
	printf("pass_ref: used once more it is: %s\n", slabc_last_error());
	return EXIT_SUCCESS;
}

int
main(void)
{
	struct slabc_cache *cache;
	struct slabc *c;
	slabc_ref ref;
	pid_t maker;
	int fds[2], status, r;

	alarm(PASS_ALARM_S);
	if (pipe(fds) < 0 || (maker = fork()) < 0)
		return pass_fail("taker", "pipe, fork", errno);
	if (maker == 0)
		_exit(maker_main(fds[1]));
	close(fds[1]);
	if (read(fds[0], &ref, sizeof(ref)) != sizeof(ref))
		return pass_fail("taker", "the maker sent nothing", EPIPE);
	kill(maker, SIGKILL);
	if (waitpid(maker, &status, 0) != maker || !WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
		return pass_fail("taker", "the maker was to be killed", ECHILD);
	printf("pass_ref: the maker, %ld, was killed\n", (long)maker);
	r = pass_open(&c, &cache);
	if (r < 0)
		return pass_fail("taker", "open", -r);
	r = taker_take(c, cache, ref, maker);
	slabc_close(c);
	return r;
}
