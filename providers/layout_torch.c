/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The torch zip format from providers. The bytes between the records are those
 * that PyTorch's own writer makes (a local header padded to the alignment, the
 * data, a descriptor with sum and lengths behind them), because its loader can
 * compute places from that rule, without looking (.format_version 1):
 *
 *	seam 0    | header of data/0
 *	storage 0 | bytes
 *	seam 1    | descriptor of data/0, header of data/1
 *	storage 1 | bytes
 *	...
 *	seam n    | descriptor, the small records, header of data.pkl
 *	pickle    | bytes; perhaps of unknown size
 *	tail      | descriptor of data.pkl, the directory
 *
 * Headers say nothing that is not known at the start: sums and lengths stand in
 * the descriptors. So all places but the tail's are fixed, and whatever needs a
 * sum is a trailer.
 *
 * The records outlive the providers that they describe: each provider made
 * here holds a count on them.
 */
#include "providers/layout_parts.h"

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "providers/crc32.h"
#include "providers/layout_torch_record.h"

#define ALIGNMENT_TEXT "64" /* RECORD_ALIGNMENT */
#define SIZE_MAX_STORAGE (UINT64_C(1) << 60)
#define NAME_LEN_MAX 4096

struct ckpt_torch {
	atomic_uint n_users;
	char *root;
	struct record *records; /* storages, small ones, data.pkl last */
	size_t n_records;
	size_t n_room;
	size_t n_storages;
	struct record pickle; /* until finish() puts it behind the others */
};

static void record_fini(struct record *r)
{
	free(r->name);
	let_go(r->p);
}

void ckpt_torch_free(struct ckpt_torch *t)
{
	if (!t || atomic_fetch_sub(&t->n_users, 1) > 1)
		return;
	for (size_t i = 0; i < t->n_records; i++)
		record_fini(&t->records[i]);
	record_fini(&t->pickle);
	free(t->records);
	free(t->root);
	free(t);
}

static void torch_freep(struct ckpt_torch **t)
{
	ckpt_torch_free(*t);
}

static struct ckpt_torch *torch_use(struct ckpt_torch *t)
{
	atomic_fetch_add(&t->n_users, 1);
	return t;
}

/* ---- places ------------------------------------------------------------ */

static void place_all(struct ckpt_torch *t)
{
	uint64_t off = 0;

	for (size_t i = 0; i < t->n_records; i++) {
		record_place(&t->records[i], off);
		off = record_end(&t->records[i]);
	}
}

static struct record *pickle_of(const struct ckpt_torch *t)
{
	return &t->records[t->n_records - 1];
}

static size_t directory_len(const struct ckpt_torch *t)
{
	size_t len = 0;

	for (size_t i = 0; i < t->n_records; i++)
		len += record_entry_len(&t->records[i]);
	return len;
}

static size_t tail_len(const struct ckpt_torch *t)
{
	return record_descriptor_len(pickle_of(t)) + directory_len(t) +
	       ZIP_ENDS_LEN;
}

/* ---- a provider whose bytes are summed ---------------------------------- */

struct summed {
	struct ckpt_provider base;
	struct ckpt_provider_ops ops; /* those that the inner one has */
	struct ckpt_torch *t;
	struct record *record;
	struct ckpt_provider *inner;
};

static struct summed *summed_of(const struct ckpt_provider *p)
{
	return CONTAINER_OF(p, struct summed, base);
}

static uint64_t summed_size(const struct ckpt_provider *p)
{
	const struct ckpt_provider *inner = summed_of(p)->inner;

	return inner->ops->size(inner);
}

static int summed_next(struct ckpt_provider *p, enum ckpt_kind kind, size_t max,
		       struct ckpt_chunk *out)
{
	struct summed *s = summed_of(p);
	int r = s->inner->ops->next(s->inner, kind, max, out);

	if (r >= 0 && kind >= CKPT_OBJECT)
		s->record->size = summed_size(p);
	return r;
}

static int summed_copy(struct ckpt_provider *p, const struct ckpt_chunk *c,
		       void *dst, ckpt_copied *done, void *arg)
{
	struct ckpt_provider *inner = summed_of(p)->inner;

	return inner->ops->copy(inner, c, dst, done, arg);
}

static int summed_kick(struct ckpt_provider *p)
{
	struct ckpt_provider *inner = summed_of(p)->inner;

	return inner->ops->kick(inner);
}

static void summed_filled(struct ckpt_provider *p, const struct ckpt_chunk *c,
			  const void *bytes)
{
	struct summed *s = summed_of(p);
	uint64_t n_behind = s->record->size - c->off - c->len;

	atomic_fetch_xor(&s->record->parts,
			 zip_crc32_part(bytes, c->len, n_behind));
	if (s->inner->ops->filled)
		s->inner->ops->filled(s->inner, c, bytes);
}

static int summed_check(struct ckpt_provider *p)
{
	struct ckpt_provider *inner = summed_of(p)->inner;

	return inner->ops->check(inner);
}

static void summed_release(struct ckpt_provider *p)
{
	struct summed *s = summed_of(p);

	let_go(s->inner);
	ckpt_torch_free(s->t);
	free(s);
}

static int summed_new(struct ckpt_torch *t, struct record *record,
		      struct ckpt_provider **out)
{
	struct summed *s = calloc(1, sizeof(*s));

	if (!s)
		return -ENOMEM;
	s->inner = MOVE(record->p);
	s->base.ops = &s->ops;
	s->ops = (struct ckpt_provider_ops){
		.name = s->inner->ops->name,
		.size = summed_size,
		.next = summed_next,
		.copy = s->inner->ops->copy ? summed_copy : NULL,
		.kick = s->inner->ops->kick ? summed_kick : NULL,
		.filled = summed_filled,
		.check = s->inner->ops->check ? summed_check : NULL,
		.release = summed_release,
	};
	s->t = torch_use(t);
	s->record = record;
	*out = &s->base;
	return 0;
}

/* ---- what lies between and behind them ---------------------------------- */

/*
 * From the end of the data of record `before` (-1: from the start) to the
 * data of record `behind`; behind the last one: the tail.
 */
struct seam {
	struct ckpt_provider base;
	struct ckpt_torch *t;
	size_t before;  /* SIZE_MAX: the file's start */
	size_t behind;  /* n_records: the file's end */
	uint8_t *bytes; /* made when they are asked for */
	size_t n_given;
};

static struct seam *seam_of(const struct ckpt_provider *p)
{
	return CONTAINER_OF(p, struct seam, base);
}

static bool is_tail(const struct seam *s)
{
	return s->behind == s->t->n_records;
}

static uint64_t seam_start(const struct seam *s)
{
	const struct record *r;

	if (s->before == SIZE_MAX)
		return 0;
	r = &s->t->records[s->before];
	return r->data_off + r->size;
}

static uint64_t seam_size(const struct ckpt_provider *p)
{
	const struct seam *s = seam_of(p);

	if (!is_tail(s))
		return s->t->records[s->behind].data_off - seam_start(s);
	if (pickle_of(s->t)->size == CKPT_SIZE_UNKNOWN)
		return CKPT_SIZE_UNKNOWN;
	return tail_len(s->t);
}

static uint8_t *put_small(uint8_t *at, struct record *r)
{
	at = record_put_header(at, r);
	memcpy(at, r->text, r->size);
	at += r->size;
	return record_put_descriptor(at, r);
}

static uint8_t *put_seam(uint8_t *at, const struct seam *s)
{
	struct record *records = s->t->records;

	if (s->before != SIZE_MAX)
		at = record_put_descriptor(at, &records[s->before]);
	for (size_t i = s->before + 1; i < s->behind; i++)
		at = put_small(at, &records[i]);
	return record_put_header(at, &records[s->behind]);
}

static uint8_t *put_tail(uint8_t *at, const struct ckpt_torch *t)
{
	at = record_put_descriptor(at, pickle_of(t));
	for (size_t i = 0; i < t->n_records; i++)
		at = record_put_entry(at, &t->records[i]);
	return zip_put_ends(at, t->n_records, record_end(pickle_of(t)),
			    directory_len(t));
}

static int seam_make(struct seam *s, size_t len)
{
	const struct record *pickle = pickle_of(s->t);
	const uint8_t *end;

	/* Its header has no room for such a length. */
	if (is_tail(s) && pickle->size >= ZIP_FAR && !pickle->is_big)
		return -EFBIG;
	s->bytes = malloc(len);
	if (!s->bytes)
		return -ENOMEM;
	end = is_tail(s) ? put_tail(s->bytes, s->t) : put_seam(s->bytes, s);
	assert(end == s->bytes + len);
	return 0;
}

static int seam_next(struct ckpt_provider *p, enum ckpt_kind kind, size_t max,
		     struct ckpt_chunk *out)
{
	struct seam *s = seam_of(p);
	size_t len;
	int r = 0;

	if (kind != CKPT_TRAILER)
		return 0;
	len = (size_t)seam_size(p);
	if (!s->bytes)
		r = seam_make(s, len);
	if (r < 0 || s->n_given == len)
		return r;
	out->off = s->n_given;
	out->len = len - s->n_given < max ? len - s->n_given : max;
	out->src = s->bytes + s->n_given;
	s->n_given += out->len;
	return 1;
}

static void seam_release(struct ckpt_provider *p)
{
	struct seam *s = seam_of(p);

	free(s->bytes);
	ckpt_torch_free(s->t);
	free(s);
}

static const struct ckpt_provider_ops seam_ops = {
	.name = "torch-zip",
	.size = seam_size,
	.next = seam_next,
	.release = seam_release,
};

static struct ckpt_provider *seam_new(struct ckpt_torch *t, size_t before,
				      size_t behind)
{
	struct seam *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	s->base.ops = &seam_ops;
	s->t = torch_use(t);
	s->before = before;
	s->behind = behind;
	return &s->base;
}

/* ---- building ----------------------------------------------------------- */

static bool is_folder_name(const char *name)
{
	size_t len = strlen(name);

	return len && len <= NAME_LEN_MAX && !strchr(name, '/');
}

int ckpt_torch_new(const char *root, struct ckpt_torch **out)
{
	CLEANUP(torch_freep) struct ckpt_torch *t = NULL;

	if (!is_folder_name(root))
		return -EINVAL;
	t = calloc(1, sizeof(*t));
	if (!t)
		return -ENOMEM;
	atomic_init(&t->n_users, 1);
	t->root = strdup(root);
	if (!t->root)
		return -ENOMEM;
	*out = MOVE(t);
	return 0;
}

static int record_init(struct record *r, const struct ckpt_torch *t,
		       const char *folder, const char *name)
{
	char *whole;

	if (asprintf(&whole, "%s/%s%s", t->root, folder, name) < 0)
		return -ENOMEM;
	memset(r, 0, sizeof(*r));
	r->name = whole;
	r->name_len = strlen(whole);
	return 0;
}

static int reserve_record(struct ckpt_torch *t)
{
	return reserve(&t->records, t->n_records, &t->n_room,
		       sizeof(*t->records));
}

static int record_add(struct ckpt_torch *t, const char *folder,
		      const char *name, struct record **out)
{
	int r = reserve_record(t);

	if (!r)
		r = record_init(&t->records[t->n_records], t, folder, name);
	if (r)
		return r;
	*out = &t->records[t->n_records++];
	return 0;
}

int ckpt_torch_storage(struct ckpt_torch *t, const char *key,
		       struct ckpt_provider *p)
{
	CLEANUP(provider_freep) struct ckpt_provider *own = p;
	struct record *record;
	int r;

	if (!own)
		return -ENOMEM;
	if (!is_folder_name(key) || own->ops->size(own) > SIZE_MAX_STORAGE)
		return -EINVAL;
	r = record_add(t, "data/", key, &record);
	if (r)
		return r;
	record->size = own->ops->size(own);
	record->p = MOVE(own);
	t->n_storages++;
	return 0;
}

int ckpt_torch_pickle(struct ckpt_torch *t, struct ckpt_provider *p)
{
	CLEANUP(provider_freep) struct ckpt_provider *own = p;
	int r;

	if (!own)
		return -ENOMEM;
	if (t->pickle.p)
		return -EEXIST;
	r = record_init(&t->pickle, t, "", "data.pkl");
	if (r)
		return r;
	t->pickle.size = own->ops->size(own);
	t->pickle.p = MOVE(own);
	return 0;
}

static int add_small(struct ckpt_torch *t, const char *name, const char *text)
{
	struct record *record;
	int r = record_add(t, "", name, &record);

	if (r)
		return r;
	record->text = text;
	record->size = strlen(text);
	atomic_store(&record->parts, zip_crc32_part(text, record->size, 0));
	return 0;
}

/* Sorted copies of the names of storages, next to each other if twice. */
static int compare(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static int check_names(const struct ckpt_torch *t)
{
	char **names = calloc(t->n_storages + 1, sizeof(*names));
	int r = 0;

	if (!names)
		return -ENOMEM;
	for (size_t i = 0; i < t->n_storages; i++)
		names[i] = t->records[i].name;
	qsort(names, t->n_storages, sizeof(*names), compare);
	for (size_t i = 1; i < t->n_storages && !r; i++)
		if (!strcmp(names[i - 1], names[i]))
			r = -EEXIST;
	free(names);
	return r;
}

/* All records in their order and at their places. */
static int settle(struct ckpt_torch *t)
{
	int r;

	if (!t->pickle.p)
		return -EINVAL;
	r = check_names(t);
	if (!r)
		r = add_small(t, "byteorder", "little");
	if (!r)
		r = add_small(t, ".format_version", "1");
	if (!r)
		r = add_small(t, ".storage_alignment", ALIGNMENT_TEXT);
	if (!r)
		r = add_small(t, "version", "3\n");
	if (!r)
		r = reserve_record(t);
	if (r)
		return r;
	t->records[t->n_records++] = t->pickle;
	memset(&t->pickle, 0, sizeof(t->pickle));
	place_all(t);
	return 0;
}

/* The seam before record i, and the record. */
static int compose_one(struct ckpt_torch *t, struct ckpt_provider *all,
		       size_t before, size_t i)
{
	struct ckpt_provider *seam = seam_new(t, before, i), *data;
	int r = seam ? ckpt_composite_add(all, seam) : -ENOMEM;

	if (!r)
		r = summed_new(t, &t->records[i], &data);
	if (!r)
		r = ckpt_composite_add(all, data);
	return r;
}

static int compose(struct ckpt_torch *t, struct ckpt_provider *all)
{
	size_t pickle = t->n_records - 1, before = SIZE_MAX;
	struct ckpt_provider *tail;
	int r = 0;

	for (size_t i = 0; i < t->n_storages && !r; i++) {
		r = compose_one(t, all, before, i);
		before = i;
	}
	if (!r)
		r = compose_one(t, all, before, pickle);
	if (r)
		return r;
	tail = seam_new(t, pickle, t->n_records);
	return tail ? ckpt_composite_add(all, tail) : -ENOMEM;
}

int ckpt_torch_finish(struct ckpt_torch *t, struct ckpt_provider **out)
{
	CLEANUP(torch_freep) struct ckpt_torch *own = t;
	CLEANUP(provider_freep) struct ckpt_provider *all = NULL;
	int r = settle(own);

	if (r)
		return r;
	all = ckpt_composite(1);
	if (!all)
		return -ENOMEM;
	r = compose(own, all);
	if (r)
		return r;
	*out = MOVE(all);
	return 0;
}
