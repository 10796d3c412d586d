/* SPDX-License-Identifier: Apache-2.0 */
/* A handler in the midst of its thread's first call, when there is nothing yet in which a free could be put off. */
#include "tests/steps_rig.h"

#include <errno.h>
#include <pthread.h>

#include "shm/barn.h"

static void *
first_call(void *arg)
{
	struct slabc_cache *k = arg;
	void *p;

	NEED(!tls.block && thread_enter(NULL), "the thread has called before");
	errno = 0;
	p = slabc_alloc(k);
	HOLDS(!p && errno == EAGAIN, "a handler amid its thread's first call got %p, and could not free it", p);
	thread_leave();
	return NULL;
}

void
it_signal_in_first_call(void)
{
	enum { N = 1000 };
	static void *pv[N];
	struct slabc_cache *k;
	struct slabc *c;
	pthread_t thread;

	rig_start(1);
	c = rig_open(rig.socket);
	k = rig_open_cache(c, 0);
	for (int i = 0; i < N; i++)
		pv[i] = rig_get(k);
	for (int i = 0; i < N; i++)
		slabc_free(k, pv[i]);
	NEED(barn_count(atomic_read(&k->shown->full)) > 0, "the barn is empty");
	NEED(pthread_create(&thread, NULL, first_call, k) == 0, "no thread");
	pthread_join(thread, NULL);
	rig_judge("after that");
	slabc_close(c);
	rig_stop();
}
