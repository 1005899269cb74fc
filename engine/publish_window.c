/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A window: the next events behind R, copied, and the bytes of their seals,
 * staged by several threads before any of them gets its name.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/publish_core.h"
#include "engine/thread.h"
#include "engine/tier.h"
#include "engine/version.h"

#define N_WINDOW 256
#define WINDOW_BYTES (UINT64_C(4) << 30)

static void pub_event_free(struct pub_event *pe)
{
	struct event *ev = &pe->ev;

	for (size_t i = 0; i < ev->n_paths && ev->paths; i++)
		free((void *)ev->paths[i]);
	free((void *)ev->paths);
	free((void *)ev->path2);
	free((void *)ev->name);
	free((void *)ev->value);
	free(pe);
}

void window_free(struct pub_events *w)
{
	struct pub_event *pe;

	while ((pe = STAILQ_FIRST(w))) {
		STAILQ_REMOVE_HEAD(w, next);
		pub_event_free(pe);
	}
}

static char *copy_str(const char *s, bool *failed)
{
	char *c = s ? strdup(s) : NULL;

	*failed |= s && !c;
	return c;
}

static struct pub_event *pub_event_copy(const struct event *ev)
{
	struct pub_event *pe = calloc(1, sizeof(*pe));
	bool failed = false;
	char **paths;
	void *value;

	if (!pe)
		return NULL;
	pe->ev = *ev;
	paths = calloc(ev->n_paths + 1, sizeof(*paths));
	for (size_t i = 0; paths && i < ev->n_paths; i++)
		paths[i] = copy_str(ev->paths[i], &failed);
	value = malloc(ev->value_len + 1);
	if (value && ev->value_len)
		memcpy(value, ev->value, ev->value_len);
	if (value)
		((char *)value)[ev->value_len] = '\0';
	pe->ev.paths = (const char *const *)paths;
	pe->ev.path2 = copy_str(ev->path2, &failed);
	pe->ev.name = copy_str(ev->name, &failed);
	pe->ev.value = value;
	if (failed || !paths || !value) {
		pub_event_free(pe);
		return NULL;
	}
	return pe;
}

struct reading {
	struct pub_events *w;
	uint64_t bytes, last;
	unsigned n;
	int err;
};

static int read_one(void *arg, const struct event *ev)
{
	struct reading *rd = arg;
	struct pub_event *pe;

	if (rd->n >= N_WINDOW || (rd->n && rd->bytes > WINDOW_BYTES))
		return 1;
	pe = pub_event_copy(ev);
	if (!pe) {
		rd->err = -ENOMEM;
		return 1;
	}
	STAILQ_INSERT_TAIL(rd->w, pe, next);
	rd->n++;
	rd->last = ev->seq;
	if (ev->kind == EVENT_SEAL)
		rd->bytes += ev->rec.size;
	return 0;
}

int window_read(struct publisher *p, uint64_t after, struct pub_events *w,
		uint64_t *last)
{
	struct reading rd = { .w = w, .last = after };
	uint64_t d = meta_nvme_seq(p->m);
	int r;

	r = meta_events(p->m, after, read_one, &rd);
	if (r < 0 || rd.err)
		return r < 0 ? r : rd.err;
	/* All read: numbers without an event are behind us too. */
	*last = r == 0 && d > rd.last ? d : rd.last;
	return 0;
}

/* ---- attributes ------------------------------------------------------- */

static int add_xattr(void *arg, const char *name, const void *value, size_t len)
{
	return remote_attr_set_xattr(arg, name, value, len);
}

int attr_of(struct publisher *p, const struct view *v,
	    const struct inode_rec *rec, uint64_t version,
	    struct copy_rec *copy, struct remote_attr *out)
{
	char target[META_PATH_MAX];
	int r;

	*out = (struct remote_attr){
		.mode = rec->mode,
		.uid = rec->uid,
		.gid = rec->gid,
		.mtime_ns = rec->mtime_ns,
		.size = S_ISREG(rec->mode) ? rec->size : 0,
	};
	if (S_ISREG(rec->mode) && version)
		remote_identity(p->m, version, out->identity);
	if (copy && copy->crcs) {
		out->n_chunks = copy->n_chunks;
		out->crcs = MOVE(copy->crcs);
	}
	r = view_xattrs(v, rec->ino, add_xattr, out);
	if (r == 0 && S_ISLNK(rec->mode)) {
		r = view_symlink(v, rec->ino, target);
		out->target = r ? NULL : strdup(target);
		if (r == 0 && !out->target)
			r = -ENOMEM;
	}
	if (r < 0)
		remote_attr_fini(out);
	return r;
}

int stage_version(struct publisher *p, const struct view *v,
		  const struct inode_rec *rec, uint64_t version,
		  struct remote_attr *attr)
{
	CLEANUP(copy_rec_fini) struct copy_rec copy = { 0 };
	CLEANUP(close_p) int fd = -1;
	struct inode_rec sized = *rec;
	int r;

	r = version_open_bytes(p->e, version, &fd, &copy);
	if (r == -ENOENT)
		return PUBLISH_STEP;
	if (r < 0)
		return r;
	sized.size = copy.size;
	r = attr_of(p, v, &sized, version, &copy, attr);
	if (r < 0)
		return r;
	r = remote_back(p, p->r->ops->stage(p->r, attr, fd, &p->bytes_done));
	if (r < 0)
		remote_attr_fini(attr);
	return r;
}

int note_remote_copy(struct publisher *p, uint64_t version,
		     const struct remote_attr *attr)
{
	struct copy_rec c = {
		.version = version,
		.tier = COPY_REMOTE,
		.kind = COPY_OBJECT,
		.size = attr->size,
		.chunk_len = CHUNK_LEN,
		.n_chunks = attr->n_chunks,
		.crcs = attr->crcs,
		.verified = true,
	};

	memcpy(c.object, attr->identity, sizeof(c.object));
	return meta_put_copy(p->m, &c, false);
}

/* ---- staging in parallel ---------------------------------------------- */

struct staging {
	struct publisher *p;
	struct pub_event **seals;
	_Atomic size_t next;
	size_t n;
};

static void stage_seal(struct publisher *p, struct pub_event *pe)
{
	struct remote_attr attr = { 0 };

	if (!pe->ev.n_paths || publish_stopping(p))
		return;
	pe->staged = stage_version(p, meta_accepted(p->m), &pe->ev.rec,
				   pe->ev.version, &attr);
	if (pe->staged == 0)
		remote_attr_fini(&attr);
}

static void *stager_run(void *arg)
{
	struct staging *s = arg;
	size_t i;

	while ((i = s->next++) < s->n)
		stage_seal(s->p, s->seals[i]);
	return NULL;
}

/* Errors are met again, and told, when the event is applied. */
void window_stage(struct publisher *p, struct pub_events *w)
{
	struct pub_event *seals[N_WINDOW], *pe;
	struct staging s = { .p = p, .seals = seals };
	pthread_t threads[N_STAGERS];
	unsigned n = 0;

	STAILQ_FOREACH(pe, w, next)
	if (pe->ev.kind == EVENT_SEAL && s.n < N_WINDOW)
		seals[s.n++] = pe;
	while (s.n > 1 && n < N_STAGERS - 1 && n + 1 < s.n) {
		if (thread_start(&threads[n], "ckpt-stage", stager_run, &s))
			break;
		n++;
	}
	stager_run(&s);
	while (n)
		pthread_join(threads[--n], NULL);
}
