/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From an inode to a path: up the directories by their names. In the
 * accepted state the paths of directories are remembered.
 *
 * Race: a path read while a rename commits may be the old one. It is put
 * under the generation that was current before it was read, and the commit
 * moves the generation on after its write, so no later question gets it.
 */
#include "metadata/path.h"

#include <errno.h>
#include <sys/stat.h>

#include "metadata/internal.h"
#include "metadata/keys.h"
#include "metadata/record.h"

void path_cache_init(struct path_cache *c)
{
	mutex_init(&c->lock);
	c->generation = 1;
	c->slots = calloc(PATH_SLOTS, sizeof(*c->slots));
}

void path_cache_fini(struct path_cache *c)
{
	for (size_t i = 0; c->slots && i < PATH_SLOTS; i++)
		free(c->slots[i].path);
	free(c->slots);
	c->slots = NULL;
	mutex_fini(&c->lock);
}

void path_cache_drop(struct path_cache *c)
{
	mutex_lock(&c->lock);
	c->generation++;
	mutex_unlock(&c->lock);
}

static struct path_slot *slot_of(struct path_slot *slots, uint64_t ino)
{
	return &slots[(ino * UINT64_C(0x9e3779b97f4a7c15)) >> 52];
}
_Static_assert(PATH_SLOTS == 1 << 12, "slot_of() keeps 12 bits");

/* Copies the path into buf and returns true; else says the generation. */
static bool cache_get(struct path_cache *c, uint64_t ino, char *buf,
		      uint64_t *generation)
{
	struct path_slot *s;
	bool hit = false;

	mutex_lock(&c->lock);
	*generation = c->generation;
	if (c->slots) {
		s = slot_of(c->slots, ino);
		hit = s->path && s->ino == ino &&
		      s->generation == c->generation;
		if (hit)
			memcpy(buf, s->path, strlen(s->path) + 1);
	}
	mutex_unlock(&c->lock);
	return hit;
}

static void cache_put(struct path_cache *c, uint64_t ino, const char *path,
		      uint64_t generation)
{
	char *copy = strdup(path), *old = copy;

	mutex_lock(&c->lock);
	if (copy && c->slots && generation == c->generation) {
		struct path_slot *s = slot_of(c->slots, ino);

		old = s->path;
		*s = (struct path_slot){ ino, generation, copy };
	}
	mutex_unlock(&c->lock);
	free(old);
}

struct first_name {
	uint64_t parent;
	char name[META_NAME_MAX + 1];
};

static int take_first(void *arg, uint64_t parent, const char *name)
{
	struct first_name *f = arg;

	f->parent = parent;
	memcpy(f->name, name, strlen(name) + 1);
	return 1;
}

static int first_name(const struct view *v, uint64_t ino, struct first_name *f)
{
	int err = view_names(v, ino, take_first, f);

	return err == 1 ? 0 : err ? err : -ENOENT;
}

/* Names are put in from the end of buf towards its beginning. */
struct climb {
	char *buf;
	size_t at;
};

static int climb_add(struct climb *c, const char *name)
{
	size_t len = strlen(name), slash = c->at < META_PATH_MAX - 1;

	if (c->at < len + slash)
		return -ENAMETOOLONG;
	if (slash)
		c->buf[--c->at] = '/';
	c->at -= len;
	memcpy(c->buf + c->at, name, len);
	return 0;
}

static int climb_finish(const struct climb *c, const char *head, char *out)
{
	const char *tail = c->buf + c->at;
	size_t n = strlen(head), m = strlen(tail), slash = n && m;

	if (n + slash + m >= META_PATH_MAX)
		return -ENAMETOOLONG;
	memmove(out, head, n);
	if (slash)
		out[n] = '/';
	memcpy(out + n + slash, tail, m + 1);
	return 0;
}

/* Climbs from ino until the root or a directory whose path is known. */
static int climb(const struct view *v, uint64_t ino, struct climb *c,
		 char *head, uint64_t *generation)
{
	struct path_cache *cache = v->snap ? NULL : &v->m->paths;
	bool known;

	*generation = 0;
	head[0] = '\0';
	while (ino != META_ROOT_INO) {
		struct first_name f;
		uint64_t now;
		int err;

		known = cache && cache_get(cache, ino, head, &now);
		if (cache && !*generation)
			*generation = now;
		if (known)
			return 0;
		err = first_name(v, ino, &f);
		if (!err)
			err = climb_add(c, f.name);
		if (err)
			return err;
		ino = f.parent;
	}
	return 0;
}

/* is_dir: remember it. */
static int path_of(const struct view *v, uint64_t ino, bool is_dir, char *buf)
{
	char tail[META_PATH_MAX], head[META_PATH_MAX];
	struct climb c = { tail, META_PATH_MAX - 1 };
	uint64_t generation;
	int err;

	tail[c.at] = '\0';
	err = climb(v, ino, &c, head, &generation);
	if (!err)
		err = climb_finish(&c, head, buf);
	if (!err && is_dir && !v->snap && tail[c.at])
		cache_put(&v->m->paths, ino, buf, generation);
	return err;
}

int view_child_path(const struct view *v, uint64_t parent, const char *name,
		    char *buf)
{
	char dir[META_PATH_MAX];
	size_t n, m = strlen(name);
	int err = path_of(v, parent, true, dir);

	if (err)
		return err;
	n = strlen(dir);
	if (n + 1 + m >= META_PATH_MAX)
		return -ENAMETOOLONG;
	memcpy(buf, dir, n);
	if (n)
		buf[n++] = '/';
	memcpy(buf + n, name, m + 1);
	return 0;
}

int view_path(const struct view *v, uint64_t ino, char *buf)
{
	uint64_t generation;
	struct first_name f;
	int err;

	if (ino == META_ROOT_INO) {
		buf[0] = '\0';
		return 0;
	}
	if (!v->snap && cache_get(&v->m->paths, ino, buf, &generation))
		return 0;
	err = first_name(v, ino, &f);
	return err ? err : view_child_path(v, f.parent, f.name, buf);
}

/* ---- when a path came to be ------------------------------------------- */

struct place {
	const struct view *v;
	uint64_t parent;
	uint64_t seq; /* put there at; at most that */
};

static int place_of(struct place *p, struct slice key, struct slice val)
{
	struct inode_rec rec;
	int err;

	if (key.len < 16)
		return -EUCLEAN;
	p->parent = get_be64((const uint8_t *)key.p + 8);
	err = name_decode(val.p, val.len, &p->seq);
	if (err || p->seq)
		return err;
	err = view_inode(p->v, get_be64(key.p), &rec);
	if (!err)
		p->seq = rec.seq;
	return err == -ENOENT ? 0 : err;
}

static int first_place(void *arg, struct slice key, struct slice val)
{
	int err = place_of(arg, key, val);

	return err ? err : 1;
}

static int scan_places(const struct view *v, uint64_t ino,
		       int (*fn)(void *arg, struct slice key, struct slice val),
		       void *arg)
{
	struct key prefix;

	key_number(&prefix, ino);
	return store_scan_prefix(v->store, v->snap, CF_NAME, key_slice(&prefix),
				 (struct slice){ 0 }, fn, arg);
}

struct newest {
	const struct view *v;
	uint64_t seq;
};

/* This name, and the directories above it, which have one name each. */
static int each_place(void *arg, struct slice key, struct slice val)
{
	struct newest *n = arg;
	struct place p = { .v = n->v };
	int err = place_of(&p, key, val);

	while (!err) {
		n->seq = p.seq > n->seq ? p.seq : n->seq;
		if (p.parent == META_ROOT_INO)
			break;
		err = scan_places(n->v, p.parent, first_place, &p);
		if (!err)
			break; /* it was removed meanwhile */
		err = err == 1 ? 0 : err;
	}
	return err;
}

int view_path_seq(const struct view *v, uint64_t ino, uint64_t *seq)
{
	struct newest n = { .v = v };
	int err = scan_places(v, ino, each_place, &n);

	if (!err)
		*seq = n.seq;
	return err;
}
