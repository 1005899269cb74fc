/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finding the tensors of a path: see the header.
 */
#include "fs/ckptctl_scan.h"

#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/fd_io.h"

#define TREE ".ckptfs/tensors"
#define RECORD ".record"
#define RECORD_MAX ((off_t)1 << 30)

/* ---- files as sources ------------------------------------------------- */

struct opened {
	struct opened *next;
	char *file; /* as a piece names it; NULL: the file itself */
	int fd;
	uint64_t size;
};

struct ctl_reading {
	char *path;
	struct opened *opened;
};

int ctl_reading_new(const char *path, struct ctl_reading **out)
{
	struct ctl_reading *r = calloc(1, sizeof(*r));

	if (r)
		r->path = strdup(path);
	if (!r || !r->path) {
		free(r);
		return -ENOMEM;
	}
	*out = r;
	return 0;
}

void ctl_reading_free(struct ctl_reading *r)
{
	struct opened *o;

	if (!r)
		return;
	while ((o = r->opened)) {
		r->opened = o->next;
		close_p(&o->fd);
		free(o->file);
		free(o);
	}
	free(r->path);
	free(r);
}

static int read_fd(void *arg, void *buf, size_t len, uint64_t off)
{
	return pread_all(((const struct opened *)arg)->fd, buf, len, off);
}

static int open_path(const char *path, struct opened *o)
{
	struct stat st;

	o->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (o->fd < 0 || fstat(o->fd, &st))
		return -errno;
	if (!S_ISREG(st.st_mode))
		return -ENOENT;
	o->size = (uint64_t)st.st_size;
	return 0;
}

static int open_beside(const struct ctl_reading *r, const char *file,
		       struct opened *o)
{
	CLEANUP(free_p) char *path = NULL;
	const char *slash = strrchr(r->path, '/');

	if (!file)
		return open_path(r->path, o);
	if (asprintf(&path, "%.*s%s", slash ? (int)(slash + 1 - r->path) : 0,
		     r->path, file) < 0)
		return -ENOMEM;
	o->file = strdup(file);
	return o->file ? open_path(path, o) : -ENOMEM;
}

static struct opened *find_opened(const struct ctl_reading *r, const char *file)
{
	struct opened *o = r->opened;

	while (o && !(o->file == file ||
		      (o->file && file && !strcmp(o->file, file))))
		o = o->next;
	return o;
}

int ctl_reading_open(void *arg, const char *file, struct reader_source *out)
{
	struct ctl_reading *r = arg;
	struct opened *o = find_opened(r, file);

	if (!o) {
		int err;

		o = calloc(1, sizeof(*o));
		if (!o)
			return -ENOMEM;
		err = open_beside(r, file, o);
		if (err) {
			close_p(&o->fd);
			free(o->file);
			free(o);
			return err;
		}
		o->next = r->opened;
		r->opened = o;
	}
	*out = (struct reader_source){ .size = o->size,
				       .read = read_fd,
				       .arg = o };
	return 0;
}

/* ---- tables ----------------------------------------------------------- */

static const char *last_part(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

static int scan_plain(const char *path, struct tensor_table **out)
{
	CLEANUP(tensor_table_freep) struct tensor_table *table = NULL;
	struct ctl_reading *r;
	struct reader_source s;
	int err = ctl_reading_new(path, &r);

	if (err)
		return err;
	err = ctl_reading_open(r, NULL, &s);
	if (!err && !s.size)
		err = -ENOMSG;
	if (!err)
		err = tensor_table_scan(&s, last_part(path), &table);
	if (!err)
		err = tensor_table_resolve(table, ctl_reading_open, r, out);
	ctl_reading_free(r);
	return err;
}

static int read_record(const char *path, struct tensor_table **out)
{
	CLEANUP(free_p) uint8_t *record = NULL;
	struct opened o = { .fd = -1 };
	int err = open_path(path, &o);

	if (!err && o.size > RECORD_MAX)
		err = -E2BIG;
	if (!err) {
		record = malloc(o.size ? o.size : 1);
		err = record ? read_fd(&o, record, o.size, 0) : -ENOMEM;
	}
	close_p(&o.fd);
	return err ? err : tensor_table_decode(record, o.size, out);
}

/* tree: where the mount shows tensors; at: where path begins below its root;
 * NULL: not on a mount. -ENOMSG: opaque. */
static int scan_file(const char *path, const char *tree, size_t at,
		     struct tensor_table **out)
{
	CLEANUP(free_p) char *record = NULL;
	int err;

	if (!tree)
		return scan_plain(path, out);
	if (asprintf(&record, "%s%s/" RECORD, tree, path + at) < 0)
		return -ENOMEM;
	err = read_record(record, out);
	return err == -ENOENT ? -ENOMSG : err;
}

/* ---- walking ---------------------------------------------------------- */

struct walk {
	struct ctl_scan *scan;
	const char *top; /* resolved */
	char *tree;      /* on a mount, else NULL */
	size_t at;
	size_t room;
};

/* Takes table. */
static int add_file(struct walk *w, const char *path,
		    struct tensor_table *table)
{
	struct ctl_scan *s = w->scan;
	const char *rel = path + strlen(w->top);
	struct ctl_file f = { .table = table };

	if (s->n == w->room) {
		size_t room = w->room ? 2 * w->room : 16;
		void *more = realloc(s->files, room * sizeof(*s->files));

		if (!more) {
			tensor_table_free(table);
			return -ENOMEM;
		}
		s->files = more;
		w->room = room;
	}
	f.path = strdup(path);
	f.rel = strdup(*rel == '/' ? rel + 1 : rel);
	f.covered = calloc(tensor_table_count(table) + 1, sizeof(*f.covered));
	s->files[s->n++] = f;
	return f.path && f.rel && f.covered ? 0 : -ENOMEM;
}

static int take_file(struct walk *w, const char *path)
{
	struct tensor_table *table = NULL;
	int err = scan_file(path, w->tree, w->at, &table);

	/* Among others, what has none does not matter. */
	if ((err == -ENOMSG || err == -E2BIG) && w->scan->is_dir)
		return 0;
	return err ? err : add_file(w, path, table);
}

static int by_name(const FTSENT **a, const FTSENT **b)
{
	return strcmp((*a)->fts_name, (*b)->fts_name);
}

static int take_entry(struct walk *w, const FTSENT *e)
{
	int err = 0;

	switch (e->fts_info) {
	case FTS_F:
		err = take_file(w, e->fts_path);
		break;
	case FTS_DNR:
	case FTS_ERR:
	case FTS_NS:
		err = -e->fts_errno;
		break;
	default:
		return 0;
	}
	/* In a directory that is in use it may be gone by now. */
	if (err == -ENOENT && e->fts_level > FTS_ROOTLEVEL)
		return 0;
	return err ? ctl_fail("'%s': %s", e->fts_path, strerror(-err)) : 0;
}

static int walk_dir(struct walk *w)
{
	char *top[] = { (char *)w->top, NULL };
	FTS *fts = fts_open(top, FTS_PHYSICAL | FTS_NOCHDIR, by_name);
	int status = 0;
	FTSENT *e;

	if (!fts)
		return ctl_fail("'%s': %s", w->top, strerror(errno));
	while (!status && (e = fts_read(fts)))
		status = take_entry(w, e);
	fts_close(fts);
	return status;
}

static bool is_dir(const char *path)
{
	struct stat st;

	return !stat(path, &st) && S_ISDIR(st.st_mode);
}

/* Is it on a mount whose daemon shows tensors? */
static int find_tree(struct walk *w)
{
	struct ctl_mount m;
	int status;

	if (!ctl_on_fuse(w->top))
		return 0;
	status = ctl_mount_open(w->top, &m);
	if (status)
		return status;
	if (asprintf(&w->tree, "%s/" TREE, strcmp(m.root, "/") ? m.root : "") <
	    0)
		status = ctl_fail("out of memory");
	w->at = strcmp(m.root, "/") ? strlen(m.root) : 0;
	if (!status &&
	    (!is_dir(w->tree) || !strncmp(w->top, w->tree, strlen(w->tree)))) {
		free(w->tree);
		w->tree = NULL;
	}
	ctl_mount_close(&m);
	return status;
}

/* ---- shards ----------------------------------------------------------- */

static struct ctl_file *file_beside(struct ctl_scan *s,
				    const struct ctl_file *f, const char *name)
{
	size_t len = strlen(f->path) - strlen(last_part(f->path));

	for (size_t i = 0; i < s->n; i++)
		if (!strncmp(s->files[i].path, f->path, len) &&
		    !strcmp(s->files[i].path + len, name))
			return &s->files[i];
	return NULL;
}

static bool is_within(const struct tensor *t, const struct tensor_piece *p)
{
	for (unsigned i = 0; i < t->n_pieces; i++)
		if (t->pieces[i].file || t->pieces[i].off < p->off ||
		    t->pieces[i].off - p->off >= p->len)
			return false;
	return true;
}

/* The tensors of a shard whose bytes are a piece of an index's tensor. */
static void cover_piece(struct ctl_file *shard, const struct tensor *whole,
			const struct tensor_piece *p)
{
	for (size_t i = 0; i < tensor_table_count(shard->table); i++) {
		const struct tensor *t = tensor_table_at(shard->table, i);

		if (p->coding == TENSOR_BY_NAME ? !strcmp(t->name, whole->name)
						: is_within(t, p))
			shard->covered[i] = true;
	}
}

static void cover(struct ctl_scan *s, const struct ctl_file *f)
{
	struct ctl_file *shard = NULL;
	const char *last = NULL;

	for (size_t i = 0; i < tensor_table_count(f->table); i++) {
		const struct tensor *t = tensor_table_at(f->table, i);

		for (unsigned k = 0; k < t->n_pieces; k++) {
			const char *name = t->pieces[k].file;

			if (!name)
				continue;
			if (name != last)
				shard = file_beside(s, f, name);
			last = name;
			if (shard && shard != f)
				cover_piece(shard, t, &t->pieces[k]);
		}
	}
}

static void hide(struct ctl_file *f)
{
	size_t n = tensor_table_count(f->table), i = 0;

	while (i < n && f->covered[i])
		i++;
	f->hidden = n && i == n;
}

int ctl_scan(const char *path, struct ctl_scan *out)
{
	CLEANUP(free_p) char *top = realpath(path, NULL);
	struct ctl_scan s = { 0 };
	struct walk w = { .scan = &s, .top = top };
	int status, err;

	if (!top)
		return ctl_fail("'%s': %s", path, ctl_error_text(-errno));
	s.is_dir = is_dir(top);
	status = find_tree(&w);
	if (!status && s.is_dir) {
		status = walk_dir(&w);
	} else if (!status) {
		err = take_file(&w, top);
		if (err)
			status = ctl_fail("'%s': %s", path,
					  err == -ENOMSG
						  ? "no tensors were found in "
						    "it"
						  : strerror(-err));
	}
	free(w.tree);
	if (status) {
		ctl_scan_fini(&s);
		return CTL_ERROR;
	}
	for (size_t i = 0; i < s.n; i++)
		cover(&s, &s.files[i]);
	for (size_t i = 0; i < s.n; i++)
		hide(&s.files[i]);
	*out = s;
	return 0;
}

void ctl_scan_fini(struct ctl_scan *s)
{
	for (size_t i = 0; i < s->n; i++) {
		free(s->files[i].path);
		free(s->files[i].rel);
		free(s->files[i].covered);
		tensor_table_free(s->files[i].table);
	}
	free(s->files);
	*s = (struct ctl_scan){ 0 };
}

char *ctl_shape(const struct tensor *t)
{
	char *text = NULL;
	size_t len;
	FILE *f = open_memstream(&text, &len);

	if (!f)
		return NULL;
	putc('[', f);
	for (unsigned i = 0; i < t->n_dims; i++)
		fprintf(f, "%s%lu", i ? ", " : "", (unsigned long)t->shape[i]);
	putc(']', f);
	if (fclose(f)) {
		free(text);
		return NULL;
	}
	return text;
}
