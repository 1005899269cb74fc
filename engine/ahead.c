/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Empty backing files made ahead. Where many small files are created, making
 * one on the tmpfs takes a quarter of the create, while a core stands idle: so
 * the settler makes about as many as were used since it looked last. None are
 * kept when nobody creates. Those that a killed daemon leaves are files that
 * no version names, and swept like them.
 */
#include <fcntl.h>
#include <sys/stat.h>

#include "engine/core.h"

void ahead_init(struct ahead *a)
{
	mutex_init(&a->lock);
}

/* The flags of a new file's first descriptor (open.c). */
static int first_flags(const struct engine *e)
{
	return e->passthrough ? O_RDONLY : O_RDWR;
}

bool ahead_take(struct engine *e, int flags, uint64_t *id, int *fd)
{
	struct ahead *a = &e->ahead;
	bool found;

	if (flags != first_flags(e))
		return false;
	mutex_lock(&a->lock);
	a->n_wanted++;
	found = a->n > 0 && a->files[a->n - 1].flags == flags;
	if (found) {
		a->n--;
		*id = a->files[a->n].id;
		*fd = a->files[a->n].fd;
	}
	mutex_unlock(&a->lock);
	if (found)
		futimens(*fd, NULL); /* it is made now */
	return found;
}

/* As many as were wanted since the last look, twice: they come in bursts. */
static unsigned how_many(struct ahead *a)
{
	unsigned n;

	mutex_lock(&a->lock);
	n = a->n_wanted < N_AHEAD / 2 ? 2 * a->n_wanted : N_AHEAD;
	a->n_wanted = 0;
	n = n > a->n ? n - a->n : 0;
	mutex_unlock(&a->lock);
	return n;
}

static bool make_one(struct engine *e)
{
	struct ahead *a = &e->ahead;
	uint64_t id = meta_new_version(e->meta);
	int fd, flags = first_flags(e);

	if (e->dram->ops->create(e->dram, id, flags, &fd))
		return false; /* whoever wants one is told why */
	mutex_lock(&a->lock);
	a->files[a->n].id = id;
	a->files[a->n].fd = fd;
	a->files[a->n++].flags = flags;
	mutex_unlock(&a->lock);
	return true;
}

void ahead_make(struct engine *e)
{
	unsigned n = how_many(&e->ahead);

	while (n-- && make_one(e))
		;
}

void ahead_drop(struct engine *e)
{
	struct ahead *a = &e->ahead;
	unsigned n;

	mutex_lock(&a->lock);
	n = a->n;
	a->n = a->n_wanted = 0;
	mutex_unlock(&a->lock);
	/* Only the settler puts any there. */
	for (unsigned i = 0; i < n; i++) {
		close(a->files[i].fd);
		(void)e->dram->ops->remove(e->dram, a->files[i].id);
	}
}
