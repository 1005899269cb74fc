/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Behind reader_zip.h. The directory is read whole and kept, as it holds the
 * names; beside it lie the members, and two orders of their numbers: by name,
 * for zip_find() and against doubles, and by place.
 *
 * By place each member knows where the next thing in the file begins
 * (`fence`). What the directory says must end before that; and as the length
 * of a local header stands only in the header itself, zip_place() asks again.
 * So no two members share a byte, at the price of one small read a member. That
 * read may be unverified if the directory, which is not, confirms what it says:
 * its member ends just where the next thing begins.
 */

#include <errno.h>
#include <string.h>
#include <zlib.h>

#include "providers/reader_bytes.h"
#include "providers/reader_zip.h"

#define END_LEN 22
#define END_SIGNATURE 0x06054b50
#define COMMENT_MAX 65535
#define END64_LEN 56
#define END64_SIGNATURE 0x06064b50
#define LOCATOR_LEN 20
#define LOCATOR_SIGNATURE 0x07064b50
#define ENTRY_LEN 46
#define ENTRY_SIGNATURE 0x02014b50
#define LOCAL_LEN 30
#define LOCAL_SIGNATURE 0x04034b50
#define FIELD64_ID 1
#define DESCRIPTOR_LEN 16
#define DESCRIPTOR64_LEN 24
#define FLAG_DESCRIPTOR (1u << 3)

/* Encrypted, patched, strongly encrypted, headers masked. */
#define FLAGS_REFUSED (1u << 0 | 1u << 5 | 1u << 6 | 1u << 13)

#define INFLATE_STEP 16384

struct entry {
	struct zip_member member;
	uint64_t header; /* of the local header */
	uint64_t fence;  /* where the next member or the directory begins */
	uint16_t flags;
};

struct zip {
	const struct reader_source *source;
	uint8_t *directory;
	size_t directory_len;
	uint64_t directory_off;
	struct entry *entries;
	size_t n;
	uint32_t *by_name;
};

/* What the end records say. */
struct end {
	uint64_t n;
	uint64_t len;
	uint64_t off;
	uint64_t at; /* where the first end record begins */
};

static int read_at(const struct reader_source *s, void *buf, size_t len,
		   uint64_t off)
{
	if (off > s->size || len > s->size - off)
		return -ENOMSG;
	return s->read(s->arg, buf, len, off);
}

/* ---- end records ---- */

/* Of what the old record leaves to the new one nothing may differ but where it
 * is saturated. */
static bool agrees(const uint8_t *field, int n, uint64_t value)
{
	uint64_t most = n == 2 ? UINT16_MAX : UINT32_MAX;
	uint64_t old = get_le(field, n);

	return old == value || old == most;
}

/* The zip64 records before the end record, if they are there. */
static int read_end64(const struct reader_source *s, const uint8_t *end,
		      struct end *out)
{
	uint8_t locator[LOCATOR_LEN], r[END64_LEN];
	int err;

	if (out->at < LOCATOR_LEN + END64_LEN)
		return 0;
	err = read_at(s, locator, sizeof(locator), out->at - LOCATOR_LEN);
	if (err)
		return err;
	if (get_le(locator, 4) != LOCATOR_SIGNATURE)
		return 0;
	out->at -= LOCATOR_LEN + END64_LEN;
	if (get_le(locator + 4, 4) || get_le(locator + 16, 4) != 1 ||
	    get_le(locator + 8, 8) != out->at)
		return -ENOMSG;
	err = read_at(s, r, sizeof(r), out->at);
	if (err)
		return err;
	out->n = get_le(r + 32, 8);
	out->len = get_le(r + 40, 8);
	out->off = get_le(r + 48, 8);
	if (get_le(r, 4) != END64_SIGNATURE ||
	    get_le(r + 4, 8) != END64_LEN - 12 || get_le(r + 16, 8) ||
	    get_le(r + 24, 8) != out->n || !agrees(end + 10, 2, out->n) ||
	    !agrees(end + 12, 4, out->len) || !agrees(end + 16, 4, out->off))
		return -ENOMSG;
	return 0;
}

static int read_end(const struct reader_source *s, const uint8_t *record,
		    uint64_t at, struct end *out)
{
	int err;

	out->n = get_le(record + 10, 2);
	out->len = get_le(record + 12, 4);
	out->off = get_le(record + 16, 4);
	out->at = at;
	if (get_le(record + 4, 4) || get_le(record + 8, 2) != out->n)
		return -ENOMSG;
	err = read_end64(s, record, out);
	if (err)
		return err;
	if (out->off > out->at || out->len != out->at - out->off)
		return -ENOMSG;
	return out->n > out->len / ENTRY_LEN ? -ENOMSG : 0;
}

/* The last place where a record lies whose comment ends with the file. */
static bool search_end(const uint8_t *tail, size_t len, size_t *at)
{
	for (size_t i = len - END_LEN + 1; i-- > 0;)
		if (get_le(tail + i, 4) == END_SIGNATURE &&
		    get_le(tail + i + 20, 2) == len - i - END_LEN) {
			*at = i;
			return true;
		}
	return false;
}

/* Most files have no comment, and then 22 bytes are read. */
static int find_end(const struct reader_source *s, struct end *out)
{
	CLEANUP(bytes_freep) uint8_t *tail = NULL;
	size_t len = END_LEN, at;
	int err;

	if (s->size < END_LEN)
		return -ENOMSG;
	tail = malloc(END_LEN + COMMENT_MAX);
	if (!tail)
		return -ENOMEM;
	err = read_at(s, tail, len, s->size - len);
	if (!err && !search_end(tail, len, &at)) {
		len = END_LEN + COMMENT_MAX;
		if (len > s->size)
			len = (size_t)s->size;
		err = read_at(s, tail, len, s->size - len);
		if (!err && !search_end(tail, len, &at))
			err = -ENOMSG;
	}
	return err ? err : read_end(s, tail + at, s->size - len + at, out);
}

/* ---- the directory ---- */

/* The next of the numbers in a zip64 field, if the old one is saturated. */
static int take64(uint64_t *value, const uint8_t **field, size_t *len)
{
	if (*value != UINT32_MAX)
		return 0;
	if (*len < 8)
		return -ENOMSG;
	*value = get_le(*field, 8);
	*field += 8;
	*len -= 8;
	return 0;
}

/* Find the zip64 field; *field stays NULL if there is none. */
static int find_field64(const uint8_t *extra, size_t len, const uint8_t **field,
			size_t *field_len)
{
	while (len >= 4) {
		size_t n = get_le(extra + 2, 2);

		if (n > len - 4)
			return -ENOMSG;
		if (get_le(extra, 2) == FIELD64_ID) {
			if (*field)
				return -ENOMSG;
			*field = extra + 4;
			*field_len = n;
		}
		extra += 4 + n;
		len -= 4 + n;
	}
	return 0;
}

static int entry_sizes(struct entry *e, const uint8_t *p, const uint8_t *extra,
		       size_t extra_len)
{
	const uint8_t *field = NULL;
	uint64_t disk = get_le(p + 34, 2);
	size_t len = 0;

	e->member.packed = get_le(p + 20, 4);
	e->member.size = get_le(p + 24, 4);
	e->header = get_le(p + 42, 4);
	if (find_field64(extra, extra_len, &field, &len))
		return -ENOMSG;
	if (field && (take64(&e->member.size, &field, &len) ||
		      take64(&e->member.packed, &field, &len) ||
		      take64(&e->header, &field, &len)))
		return -ENOMSG;
	if (disk == UINT16_MAX && len >= 4)
		disk = get_le(field, 4);
	return disk ? -ENOMSG : 0;
}

static bool entry_fits(const struct zip *z, const struct entry *e)
{
	uint64_t before = LOCAL_LEN + e->member.name_len;

	if (e->member.method == ZIP_STORED) {
		if (e->member.packed != e->member.size)
			return false;
	} else if (e->member.method != ZIP_DEFLATED) {
		return false;
	}
	return e->header <= z->directory_off &&
	       before <= z->directory_off - e->header &&
	       e->member.packed <= z->directory_off - e->header - before;
}

/* One entry at *at; moves it on. */
static int read_entry(const struct zip *z, size_t *at, struct entry *e)
{
	const uint8_t *p = z->directory + *at;
	size_t left = z->directory_len - *at, extra, comment;

	if (left < ENTRY_LEN || get_le(p, 4) != ENTRY_SIGNATURE)
		return -ENOMSG;
	left -= ENTRY_LEN;
	e->flags = (uint16_t)get_le(p + 8, 2);
	e->member.method = get_le(p + 10, 2);
	e->member.name = (const char *)p + ENTRY_LEN;
	e->member.name_len = get_le(p + 28, 2);
	extra = get_le(p + 30, 2);
	comment = get_le(p + 32, 2);
	if (e->member.name_len + extra + comment > left || !e->member.name_len)
		return -ENOMSG;
	if (e->flags & FLAGS_REFUSED ||
	    memchr(e->member.name, 0, e->member.name_len))
		return -ENOMSG;
	if (entry_sizes(e, p, p + ENTRY_LEN + e->member.name_len, extra) ||
	    !entry_fits(z, e))
		return -ENOMSG;
	*at += ENTRY_LEN + e->member.name_len + extra + comment;
	return 0;
}

static int read_entries(struct zip *z)
{
	size_t at = 0;
	int err = 0;

	for (size_t i = 0; !err && i < z->n; i++)
		err = read_entry(z, &at, &z->entries[i]);
	return err || at != z->directory_len ? -ENOMSG : 0;
}

static int compare_names(const char *a, size_t a_len, const char *b,
			 size_t b_len)
{
	int d = memcmp(a, b, a_len < b_len ? a_len : b_len);

	return d ? d : (a_len > b_len) - (a_len < b_len);
}

static int by_name(const void *a, const void *b, void *arg)
{
	const struct entry *entries = arg;
	const struct zip_member *x = &entries[*(const uint32_t *)a].member;
	const struct zip_member *y = &entries[*(const uint32_t *)b].member;

	return compare_names(x->name, x->name_len, y->name, y->name_len);
}

static int by_place(const void *a, const void *b, void *arg)
{
	const struct entry *entries = arg;
	uint64_t x = entries[*(const uint32_t *)a].header;
	uint64_t y = entries[*(const uint32_t *)b].header;

	return (x > y) - (x < y);
}

/* Sort by place, and give each its fence. */
static int set_fences(struct zip *z, uint32_t *order)
{
	uint64_t fence = z->directory_off;

	qsort_r(order, z->n, sizeof(*order), by_place, z->entries);
	for (size_t i = z->n; i-- > 0;) {
		struct entry *e = &z->entries[order[i]];

		if (LOCAL_LEN + e->member.name_len + e->member.packed >
		    fence - e->header)
			return -ENOMSG;
		e->fence = fence;
		fence = e->header;
	}
	return 0;
}

/* by_name is lent to set_fences() before it is what it is called. */
static int sort_entries(struct zip *z)
{
	for (uint32_t i = 0; i < z->n; i++)
		z->by_name[i] = i;
	if (set_fences(z, z->by_name))
		return -ENOMSG;
	qsort_r(z->by_name, z->n, sizeof(*z->by_name), by_name, z->entries);
	for (size_t i = 1; i < z->n; i++)
		if (!by_name(&z->by_name[i - 1], &z->by_name[i], z->entries))
			return -ENOMSG;
	return 0;
}

/* qsort_r() may take as much again as it sorts. */
static int make_room(struct zip *z, const struct end *end, size_t memory)
{
	size_t each = sizeof(*z->entries) + 2 * sizeof(*z->by_name);

	if (end->len > memory || end->n > (memory - end->len) / each ||
	    end->n > UINT32_MAX)
		return -E2BIG;
	z->n = end->n;
	z->directory_len = end->len;
	z->directory_off = end->off;
	z->directory = malloc(z->directory_len + 1);
	z->entries = calloc(z->n + 1, sizeof(*z->entries));
	z->by_name = calloc(z->n + 1, sizeof(*z->by_name));
	return z->directory && z->entries && z->by_name ? 0 : -ENOMEM;
}

int zip_open(const struct reader_source *source, size_t memory,
	     struct zip **out)
{
	CLEANUP(zip_freep) struct zip *z = NULL;
	struct end end;
	int err = find_end(source, &end);

	if (err)
		return err;
	z = calloc(1, sizeof(*z));
	if (!z)
		return -ENOMEM;
	z->source = source;
	err = make_room(z, &end, memory);
	if (!err)
		err = read_at(source, z->directory, z->directory_len,
			      z->directory_off);
	if (!err)
		err = read_entries(z);
	if (!err)
		err = sort_entries(z);
	if (!err)
		*out = MOVE(z);
	return err;
}

void zip_free(struct zip *z)
{
	if (!z)
		return;
	free(z->directory);
	free(z->entries);
	free(z->by_name);
	free(z);
}

void zip_freep(struct zip **z)
{
	zip_free(*z);
}

size_t zip_count(const struct zip *z)
{
	return z->n;
}

const struct zip_member *zip_at(const struct zip *z, size_t i)
{
	return &z->entries[i].member;
}

bool zip_find(const struct zip *z, const char *name, size_t len, size_t *i)
{
	size_t low = 0, high = z->n;

	while (low < high) {
		size_t mid = low + (high - low) / 2;
		const struct zip_member *m = zip_at(z, z->by_name[mid]);
		int d = compare_names(name, len, m->name, m->name_len);

		if (!d) {
			*i = z->by_name[mid];
			return true;
		}
		if (d < 0)
			high = mid;
		else
			low = mid + 1;
	}
	return false;
}

/* ---- members ---- */

/* Sizes in the local header may be left to a descriptor behind the bytes. */
static int place_of(const struct entry *e, const uint8_t *local, uint64_t *off)
{
	const struct zip_member *m = &e->member;
	uint64_t data;

	if (get_le(local, 4) != LOCAL_SIGNATURE ||
	    (get_le(local + 6, 2) & FLAGS_REFUSED) ||
	    get_le(local + 8, 2) != m->method ||
	    get_le(local + 26, 2) != m->name_len ||
	    memcmp(local + LOCAL_LEN, m->name, m->name_len) != 0)
		return -ENOMSG;
	data = e->header + LOCAL_LEN + m->name_len + get_le(local + 28, 2);
	if (data > e->fence || m->packed > e->fence - data)
		return -ENOMSG;
	*off = data;
	return 0;
}

/* Nothing is left between the member at off and what comes next but the
 * descriptor that the directory speaks of. */
static bool is_confirmed(const struct entry *e, uint64_t off)
{
	const struct zip_member *m = &e->member;
	uint64_t left = e->fence - off - m->packed;

	if (!(e->flags & FLAG_DESCRIPTOR))
		return !left;
	return left == (m->packed > UINT32_MAX || m->size > UINT32_MAX
				? DESCRIPTOR64_LEN
				: DESCRIPTOR_LEN);
}

int zip_place(struct zip *z, size_t i, uint64_t *off)
{
	const struct reader_source *s = z->source;
	const struct entry *e = &z->entries[i];
	size_t len = LOCAL_LEN + e->member.name_len;
	CLEANUP(bytes_freep) uint8_t *local = malloc(len);
	uint64_t peeked;
	int err;

	if (!local)
		return -ENOMEM;
	if (s->peek && !s->peek(s->arg, local, len, e->header) &&
	    !place_of(e, local, &peeked) && is_confirmed(e, peeked)) {
		*off = peeked;
		return 0;
	}
	err = read_at(s, local, len, e->header);
	return err ? err : place_of(e, local, off);
}

/* Inflate len bytes into buf, which the member has, from off on. */
static int inflate_head(struct zip *z, const struct zip_member *m, uint64_t off,
			z_stream *s)
{
	CLEANUP(bytes_freep) uint8_t *step = malloc(INFLATE_STEP);
	uint64_t left = m->packed;

	if (!step)
		return -ENOMEM;
	while (s->avail_out) {
		size_t n = left < INFLATE_STEP ? left : INFLATE_STEP;
		int err = read_at(z->source, step, n, off), status;

		if (err)
			return err;
		s->next_in = step;
		s->avail_in = (uInt)n;
		off += n;
		left -= n;
		status = inflate(s, Z_SYNC_FLUSH);
		if (status == Z_MEM_ERROR)
			return -ENOMEM;
		if (s->avail_out && (status != Z_OK || !left))
			return -ENOMSG;
	}
	return 0;
}

static int head_deflated(struct zip *z, const struct zip_member *m,
			 uint64_t off, void *buf, size_t len)
{
	z_stream s = { .next_out = buf, .avail_out = (uInt)len };
	int err;

	if (inflateInit2(&s, -MAX_WBITS) != Z_OK)
		return -ENOMEM;
	err = inflate_head(z, m, off, &s);
	inflateEnd(&s);
	return err;
}

int zip_head(struct zip *z, size_t i, void *buf, size_t len, size_t *got)
{
	const struct zip_member *m = zip_at(z, i);
	uint64_t off;
	int err = zip_place(z, i, &off);

	if (err)
		return err;
	if (len > m->size)
		len = (size_t)m->size;
	if (len > INT32_MAX)
		return -E2BIG;
	if (m->method == ZIP_STORED)
		err = read_at(z->source, buf, len, off);
	else
		err = head_deflated(z, m, off, buf, len);
	if (!err)
		*got = len;
	return err;
}

int zip_read(struct zip *z, size_t i, size_t memory, uint8_t **out,
	     size_t *out_len)
{
	CLEANUP(bytes_freep) uint8_t *buf = NULL;
	uint64_t size = zip_at(z, i)->size;
	int err;

	if (size > memory || size > INT32_MAX)
		return -E2BIG;
	buf = malloc(size + 1);
	if (!buf)
		return -ENOMEM;
	err = zip_head(z, i, buf, size, out_len);
	if (!err)
		*out = MOVE(buf);
	return err;
}
