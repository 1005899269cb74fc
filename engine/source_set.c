/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sources by the names that pieces give. A reader_source handed out is a
 * member of the set, which opens its source at the first read and may lose it
 * again when others are wanted: a checkpoint may have more shards than we have
 * descriptors.
 */
#include "engine/source_set.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/core.h"

#define N_OPEN 16 /* sources that stay open unread */

struct member {
	struct source_set *set;
	struct pin pin;
	struct source *source; /* guarded by the set's lock, like these */
	unsigned users;
	uint64_t used; /* the set's clock */
	uint64_t size;
};

struct source_set {
	struct engine *e;
	uint64_t ino;
	bool grows;
	struct member **members; /* maker's while it grows, else immutable */
	size_t n, room;
	struct pin *pins; /* copies, for source_set_pins() */
	struct mutex lock;
	unsigned n_open;
	uint64_t clock;
};

/* ---- looking up ------------------------------------------------------- */

static int first_name(void *arg, uint64_t parent, const char *name)
{
	(void)name;
	*(uint64_t *)arg = parent;
	return 1;
}

static int regular(struct engine *e, uint64_t ino, struct pin *out)
{
	struct inode_rec rec;
	int r = view_inode(meta_accepted(e->meta), ino, &rec);

	if (r < 0)
		return r;
	if (!S_ISREG(rec.mode) || !rec.version)
		return -ENOENT;
	*out = (struct pin){ .ino = ino, .version = rec.version };
	return 0;
}

int pin_look_up(struct engine *e, uint64_t ino, const char *file,
		struct pin *out)
{
	const struct view *v = meta_accepted(e->meta);
	struct dentry_rec d = { 0 };
	char name[META_NAME_MAX + 1];
	int r;

	r = view_names(v, ino, first_name, &d.ino);
	if (r < 0 || !d.ino)
		return r < 0 ? r : -ENOENT;
	while (*file) {
		size_t len = strcspn(file, "/");

		if (len > META_NAME_MAX)
			return -ENOENT;
		memcpy(name, file, len);
		name[len] = 0;
		file += len + (file[len] == '/');
		if (!len || !strcmp(name, "."))
			continue;
		if (!strcmp(name, ".."))
			return -ENOENT;
		r = view_lookup(v, d.ino, name, &d);
		if (r < 0)
			return r == -ENAMETOOLONG ? -ENOENT : r;
	}
	return regular(e, d.ino, out);
}

/* ---- the set ---------------------------------------------------------- */

static bool same_file(const char *a, const char *b)
{
	return a == b || (a && b && !strcmp(a, b));
}

static int make_room(struct source_set *set)
{
	size_t room = set->room ? 2 * set->room : 4;
	void *members, *pins;

	if (set->n < set->room)
		return 0;
	members = realloc(set->members, room * sizeof(*set->members));
	if (members)
		set->members = members;
	pins = realloc(set->pins, room * sizeof(*set->pins));
	if (pins)
		set->pins = pins;
	if (!members || !pins)
		return -ENOMEM;
	set->room = room;
	return 0;
}

static int add(struct source_set *set, const struct pin *pin, const char *file)
{
	struct version_rec rec;
	struct member *m;
	int r = make_room(set);

	if (!r)
		r = view_version(meta_accepted(set->e->meta), pin->version,
				 &rec);
	if (r < 0)
		return r == -ENOENT ? -ESTALE : r;
	m = calloc(1, sizeof(*m));
	if (!m)
		return -ENOMEM;
	m->set = set;
	m->pin = *pin;
	m->size = rec.size;
	m->pin.file = file ? strdup(file) : NULL;
	if (file && !m->pin.file) {
		free(m);
		return -ENOMEM;
	}
	set->pins[set->n] = m->pin;
	set->members[set->n++] = m;
	return 0;
}

int source_set_new(struct engine *e, uint64_t ino, const struct pin *pins,
		   size_t n, bool grows, struct source_set **out)
{
	struct source_set *set = calloc(1, sizeof(*set));
	int r = 0;

	if (!set)
		return -ENOMEM;
	set->e = e;
	set->ino = ino;
	set->grows = grows;
	mutex_init(&set->lock);
	for (size_t i = 0; i < n && !r; i++)
		r = add(set, &pins[i], pins[i].file);
	if (r < 0)
		source_set_free(set);
	else
		*out = set;
	return r;
}

void source_set_free(struct source_set *set)
{
	if (!set)
		return;
	for (size_t i = 0; i < set->n; i++) {
		source_close(set->members[i]->source);
		free(set->members[i]->pin.file);
		free(set->members[i]);
	}
	free(set->members);
	free(set->pins);
	mutex_fini(&set->lock);
	free(set);
}

const struct pin *source_set_pins(const struct source_set *set, size_t *n)
{
	*n = set->n;
	return set->pins;
}

/* ---- reading ---------------------------------------------------------- */

/* One that nobody reads and that was read longest ago, taken out. */
static struct source *take_idle_locked(struct source_set *set)
	MUST_HOLD(set->lock);
static struct source *take_idle_locked(struct source_set *set)
{
	struct member *oldest = NULL;
	struct source *s;

	if (set->n_open <= N_OPEN)
		return NULL;
	for (size_t i = 0; i < set->n; i++) {
		struct member *m = set->members[i];

		if (m->source && !m->users &&
		    (!oldest || m->used < oldest->used))
			oldest = m;
	}
	if (!oldest)
		return NULL;
	s = oldest->source;
	oldest->source = NULL;
	set->n_open--;
	return s;
}

static int begin(struct member *m, struct source **out)
{
	struct source_set *set = m->set;
	struct source *opened = NULL;
	int r = 0;

	mutex_lock(&set->lock);
	m->users++;
	m->used = ++set->clock;
	*out = m->source;
	mutex_unlock(&set->lock);
	if (*out)
		return 0;
	r = source_open(set->e, m->pin.ino, m->pin.version, true, &opened);
	mutex_lock(&set->lock);
	if (!r && !m->source) {
		m->source = MOVE(opened);
		set->n_open++;
	}
	*out = m->source;
	if (r < 0)
		m->users--;
	mutex_unlock(&set->lock);
	source_close(opened);
	return r;
}

static void end(struct member *m)
{
	struct source *idle;

	mutex_lock(&m->set->lock);
	m->users--;
	idle = take_idle_locked(m->set);
	mutex_unlock(&m->set->lock);
	source_close(idle);
}

static int member_read(void *arg, void *buf, size_t len, uint64_t off)
{
	struct member *m = arg;
	struct source *s;
	int r = begin(m, &s);

	if (r < 0)
		return r;
	r = source_read(s, buf, len, off);
	end(m);
	return r;
}

int source_set_open(void *arg, const char *file, struct reader_source *out)
{
	struct source_set *set = arg;
	struct member *m = NULL;
	struct pin pin;
	int r = 0;

	for (size_t i = 0; i < set->n && !m; i++)
		if (same_file(set->members[i]->pin.file, file))
			m = set->members[i];
	if (!m && (!set->grows || !file))
		return -ENOENT;
	if (!m) {
		r = pin_look_up(set->e, set->ino, file, &pin);
		if (!r)
			r = add(set, &pin, file);
		if (r < 0)
			return r == -ESTALE ? -ENOENT : r;
		m = set->members[set->n - 1];
	}
	*out = (struct reader_source){ .size = m->size,
				       .read = member_read,
				       .arg = m };
	return 0;
}

int source_set_hold(struct source_set *set, const char *file)
{
	struct reader_source found;
	struct source *s;
	int r = source_set_open(set, file, &found);

	if (!r)
		r = begin(found.arg, &s);
	if (!r)
		end(found.arg);
	return r;
}
