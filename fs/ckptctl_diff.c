/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `diff`: which tensors of A differ in B, byte by byte of their images, which
 * are in one of them only. A tensor is the same by its name; where a name
 * stands in several files of one side, by its file and name. Exit status as of
 * diff(1).
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "fs/ckptctl_scan.h"

#define PIECE ((size_t)4 << 20)
#define BAR_NS INT64_C(200000000)

enum { DIFF_SAME = 0, DIFF_DIFFERENT = 1, DIFF_TROUBLE = 2 };

struct item {
	const struct ctl_file *file;
	const struct tensor *t;
};

struct side {
	struct ctl_scan scan;
	struct item *items; /* sorted */
	size_t n;
	const struct ctl_file *open; /* what reading reads */
	struct ctl_reading *reading;
};

/* Tensors of which one thing is said. */
struct verdict {
	const char *word;
	json_t *list;
	size_t n;
};

struct diff {
	struct side a, b;
	bool by_file; /* names alone are not enough */
	bool json;
	struct verdict changed, appeared, gone;
	size_t n_same;
	uint64_t bytes_left, bytes;
	void *buf_a, *buf_b;
	int64_t drawn_ns;
	int trouble;
};

/* ---- what is to be compared ------------------------------------------- */

static int by_name(const void *a, const void *b)
{
	const struct item *x = a, *y = b;

	return strcmp(x->t->name, y->t->name);
}

static int by_file(const void *a, const void *b)
{
	const struct item *x = a, *y = b;
	int order = strcmp(x->file->rel, y->file->rel);

	return order ? order : by_name(a, b);
}

static int list(struct side *s)
{
	size_t n = 0;

	for (size_t i = 0; i < s->scan.n; i++)
		n += tensor_table_count(s->scan.files[i].table);
	s->items = calloc(n + 1, sizeof(*s->items));
	if (!s->items)
		return -ENOMEM;
	for (size_t i = 0; i < s->scan.n; i++) {
		const struct ctl_file *f = &s->scan.files[i];

		for (size_t k = 0; k < tensor_table_count(f->table); k++)
			if (!f->covered[k])
				s->items[s->n++] = (struct item){
					f, tensor_table_at(f->table, k)
				};
	}
	qsort(s->items, s->n, sizeof(*s->items), by_name);
	return 0;
}

static bool has_twins(const struct side *s)
{
	for (size_t i = 1; i < s->n; i++)
		if (!by_name(&s->items[i - 1], &s->items[i]))
			return true;
	return false;
}

/* ---- comparing -------------------------------------------------------- */

static int64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * INT64_C(1000000000) + ts.tv_nsec;
}

static void draw(struct diff *d)
{
	static int64_t began;
	int64_t now = now_ns();

	began = began ? began : now;
	if (!isatty(STDERR_FILENO) || now - d->drawn_ns < BAR_NS)
		return;
	d->drawn_ns = now;
	ctl_bar_draw("diff", d->bytes_left, d->bytes,
		     (double)(now - began) / 1e9);
}

static int use(struct side *s, const struct ctl_file *f)
{
	if (s->open == f)
		return 0;
	ctl_reading_free(s->reading);
	s->reading = NULL;
	s->open = NULL;
	int err = ctl_reading_new(f->path, &s->reading);

	if (!err)
		s->open = f;
	return err;
}

static int get(struct side *s, const struct tensor *t, void *buf, size_t len,
	       uint64_t off)
{
	return tensor_gather(t, ctl_reading_open, s->reading, buf, len, off);
}

static int same_bytes(struct diff *d, const struct item *a,
		      const struct item *b, bool *same)
{
	uint64_t len = tensor_len(a->t);
	int err = use(&d->a, a->file);

	if (!err)
		err = use(&d->b, b->file);
	*same = true;
	for (uint64_t off = 0; !err && *same && off < len; off += PIECE) {
		size_t n = len - off < PIECE ? (size_t)(len - off) : PIECE;

		err = get(&d->a, a->t, d->buf_a, n, off);
		if (!err)
			err = get(&d->b, b->t, d->buf_b, n, off);
		*same = !err && !memcmp(d->buf_a, d->buf_b, n);
		d->bytes_left -= n;
		draw(d);
	}
	return err;
}

static bool same_shape(const struct tensor *a, const struct tensor *b)
{
	return a->n_dims == b->n_dims &&
	       (!a->n_dims ||
		!memcmp(a->shape, b->shape, a->n_dims * sizeof(*a->shape)));
}

static bool same_type(const struct tensor *a, const struct tensor *b)
{
	return a->type == b->type &&
	       (a->type != TENSOR_PACKED || !a->type_name || !b->type_name ||
		!strcmp(a->type_name, b->type_name));
}

/* ---- telling ---------------------------------------------------------- */

static void out_of_memory(struct diff *d)
{
	(void)ctl_fail("out of memory");
	d->trouble = DIFF_TROUBLE;
}

static void tell(struct diff *d, struct verdict *v, const struct item *i,
		 const char *why)
{
	CLEANUP(free_p) char *shape = ctl_shape(i->t);
	char bytes[CTL_BYTES_LEN];

	v->n++;
	if (json_array_append_new(
		    v->list,
		    json_pack("{s:o,s:o,s:I,s:s*}", "name",
			      ctl_json_name(i->t->name), "file",
			      ctl_json_name(i->file->rel), "bytes",
			      (json_int_t)tensor_len(i->t), "why", why)))
		out_of_memory(d);
	if (d->json)
		return;
	if (d->drawn_ns)
		ctl_bar_clear();
	printf("%-8s ", v->word);
	if (d->by_file) {
		ctl_print_name(i->file->rel);
		fputs(": ", stdout);
	}
	ctl_print_name(i->t->name);
	printf("  %s %s  %s%s%s\n", tensor_type_name(i->t->type),
	       shape ? shape : "", ctl_bytes(tensor_len(i->t), bytes),
	       why ? "  " : "", why ? why : "");
}

static void compare(struct diff *d, const struct item *a, const struct item *b)
{
	const char *why = NULL;
	bool same;
	int err;

	if (!same_type(a->t, b->t))
		why = "dtype";
	else if (!same_shape(a->t, b->t))
		why = "shape";
	if (why) {
		tell(d, &d->changed, b, why);
		return;
	}
	err = a->t->type == TENSOR_UNKNOWN ? -ENOENT
					   : same_bytes(d, a, b, &same);
	if (err) {
		(void)ctl_fail("cannot read '%s' of '%s': %s", a->t->name,
			       a->file->path, strerror(-err));
		d->trouble = DIFF_TROUBLE;
	} else if (same) {
		d->n_same++;
	} else {
		tell(d, &d->changed, b, "bytes");
	}
}

static void merge(struct diff *d)
{
	int (*order)(const void *, const void *) = d->by_file ? by_file
							      : by_name;
	size_t i = 0, k = 0;

	while (i < d->a.n || k < d->b.n) {
		const struct item *a = &d->a.items[i], *b = &d->b.items[k];
		int o = i == d->a.n ? 1 : k == d->b.n ? -1 : order(a, b);

		if (o < 0)
			tell(d, &d->gone, a, NULL);
		else if (o > 0)
			tell(d, &d->appeared, b, NULL);
		else
			compare(d, a, b);
		i += o <= 0;
		k += o >= 0;
	}
}

static void print_json(struct diff *d)
{
	json_t *all = json_pack("{s:O,s:O,s:O,s:I}", "changed", d->changed.list,
				"appeared", d->appeared.list, "gone",
				d->gone.list, "same", (json_int_t)d->n_same);

	if (!all)
		out_of_memory(d);
	else if (!json_dumpf(all, stdout, JSON_INDENT(1)))
		putchar('\n');
	json_decref(all);
}

static int finish(struct diff *d)
{
	size_t n = d->changed.n + d->appeared.n + d->gone.n;

	if (d->drawn_ns)
		ctl_bar_clear();
	if (d->json)
		print_json(d);
	else
		printf("%zu changed, %zu appeared, %zu gone, %zu the same\n",
		       d->changed.n, d->appeared.n, d->gone.n, d->n_same);
	/* Before main() does: its exit status would say that they differ. */
	if (fflush(stdout) || ferror(stdout)) {
		(void)ctl_fail("cannot write: %s", strerror(errno));
		d->trouble = DIFF_TROUBLE;
	}
	if (d->trouble)
		return d->trouble;
	return n ? DIFF_DIFFERENT : DIFF_SAME;
}

static void side_fini(struct side *s)
{
	ctl_reading_free(s->reading);
	free(s->items);
	ctl_scan_fini(&s->scan);
}

static int prepare(struct diff *d)
{
	if (list(&d->a) || list(&d->b))
		return -ENOMEM;
	d->by_file = d->a.scan.is_dir && d->b.scan.is_dir &&
		     (has_twins(&d->a) || has_twins(&d->b));
	if (d->by_file) {
		qsort(d->a.items, d->a.n, sizeof(*d->a.items), by_file);
		qsort(d->b.items, d->b.n, sizeof(*d->b.items), by_file);
	}
	for (size_t i = 0; i < d->a.n; i++)
		d->bytes += tensor_len(d->a.items[i].t);
	d->bytes_left = d->bytes;
	d->changed = (struct verdict){ "changed", json_array(), 0 };
	d->appeared = (struct verdict){ "appeared", json_array(), 0 };
	d->gone = (struct verdict){ "gone", json_array(), 0 };
	d->buf_a = malloc(PIECE);
	d->buf_b = malloc(PIECE);
	return d->buf_a && d->buf_b ? 0 : -ENOMEM;
}

int ctl_diff(const struct ctl_args *args)
{
	struct diff d = { .json = args->json };
	int status = DIFF_TROUBLE;

	if (!ctl_scan(args->path, &d.a.scan) &&
	    !ctl_scan(args->path2, &d.b.scan)) {
		if (prepare(&d)) {
			(void)ctl_fail("out of memory");
		} else if (!d.a.n && !d.b.n) {
			/* Formats that no reader knows are not "the same". */
			(void)ctl_fail("no tensors were found in '%s' nor in "
				       "'%s'",
				       args->path, args->path2);
		} else {
			merge(&d);
			status = finish(&d);
		}
	}
	json_decref(d.changed.list);
	json_decref(d.appeared.list);
	json_decref(d.gone.list);
	free(d.buf_a);
	free(d.buf_b);
	side_fini(&d.a);
	side_fini(&d.b);
	return status;
}
