/* SPDX-License-Identifier: Apache-2.0 */
#include "server/readers.h"

#include <stddef.h>

#include "shm/atomic.h"

void
readers_init(struct readers *readers)
{
	*readers = (struct readers){.lastp = &readers->first};
	pthread_mutex_init(&readers->lock, NULL);
}

void
readers_deinit(struct readers *readers)
{
	pthread_mutex_destroy(&readers->lock);
}

void
readers_enter(struct readers *readers, struct reader *reader, const uint32_t *flag)
{
	pthread_mutex_lock(&readers->lock);
	*reader = (struct reader){.prevp = readers->lastp, .number = ++readers->n_ever, .flag = flag};
	*readers->lastp = reader;
	readers->lastp = &reader->next;
	pthread_mutex_unlock(&readers->lock);
}

void
readers_leave(struct readers *readers, struct reader *reader)
{
	pthread_mutex_lock(&readers->lock);
	*reader->prevp = reader->next;
	if (reader->next)
		reader->next->prevp = reader->prevp;
	else
		readers->lastp = reader->prevp;
	pthread_mutex_unlock(&readers->lock);
}

void
readers_move(struct readers *readers, struct reader *reader, const uint32_t *flag)
{
	pthread_mutex_lock(&readers->lock);
	reader->flag = flag;
	pthread_mutex_unlock(&readers->lock);
}

uint64_t
readers_last(struct readers *readers)
{
	uint64_t n;

	pthread_mutex_lock(&readers->lock);
	n = readers->n_ever;
	pthread_mutex_unlock(&readers->lock);
	return n;
}

/* lock held. */
static bool
is_reader(struct reader *reader)
{
	if (!reader->flag)
		return true;
	reader->has_resolved = reader->has_resolved || atomic_read(reader->flag) != 0;
	return reader->has_resolved;
}

uint64_t
readers_oldest(struct readers *readers)
{
	struct reader *reader;
	uint64_t number;

	pthread_mutex_lock(&readers->lock);
	/* order: READER acquire - the page map was changed before the flags are read; pairs with the fence of slabc_deref()'s first time */
	atomic_fence_full();
	reader = readers->first;
	while (reader && !is_reader(reader))
		reader = reader->next;
	number = reader ? reader->number : UINT64_MAX;
	pthread_mutex_unlock(&readers->lock);
	return number;
}
